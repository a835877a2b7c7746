"""Sweeps on a real SLURM: by submitit, and as the steps of one allocation; test_submit.py has a job array."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import PROBES, ROOT, SMALL, Run
from helpers.slurm_cluster import Cluster
from helpers.train_runs import assert_same_runs, probe, rows, seen, summary

pytestmark = pytest.mark.slow(40)
TRAIN = (sys.executable, "-m", "imagenet_ddp.train")
SUBMITIT = (
    "hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=60", "hydra.launcher.signal_delay_s=120",
    "hydra.launcher.array_parallelism=1", "hydra.launcher.cpus_per_task=2",
)  # fmt: skip


def options(tree: Path, *more: str) -> list[str]:
    return [*SMALL, f"data.root={tree}", "trainer.log_every_n_steps=1", *more]


def test_two_by_submitit_one_at_a_time(cluster: Cluster, work: Path, tree: Path, run: Run) -> None:
    """One fails, and one is stopped by the signal that SLURM sends before a time limit: it resumes after a requeue.
    submitit's own handler would have ended it before its workers had saved."""
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    kinds = "+callbacks.probe.what=nothing,crash"
    swept = [*probe(work / "seen", step=2, slow_s=0.5), kinds, "trainer.max_epochs=4", "hydra.sweep.dir=s"]
    command = [*TRAIN, "-m", *options(tree), *swept, *SUBMITIT]
    with (work / "out").open("w") as out:
        environ = {**cluster.environ, "PYTHONPATH": PROBES}
        process = subprocess.Popen(command, cwd=work, env=environ, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        most, is_stopped = 0, False
        slow, limit = work / "s/0/metrics.csv", time.monotonic() + 500
        while process.poll() is None:
            most = max(most, cluster.run(["squeue", "-h", "-t", "RUNNING"], check=False).stdout.count("\n"))
            cluster.hasten()
            if not is_stopped and slow.exists():
                (array,) = {path.name.partition("_")[0] for path in (work / "s/.submitit").glob("*_0")}
                cluster.run(["scancel", "--signal=USR2", f"{array}_0"])
                is_stopped = True
            assert time.monotonic() < limit, (work / "out").read_text()
            time.sleep(0.5)
    output = (work / "out").read_text()
    assert process.returncode == 1, output
    assert most == 1
    assert "1 of 2 jobs failed:" in output
    assert "job 1 (+callbacks.probe.what=crash) in" in output
    assert [(work / f"s/{number}/summary.json").exists() for number in range(2)] == [True, False], output
    assert [row["epoch"] for row in rows(work / "s/0")] == [str(epoch) for epoch in range(1, 5)]
    (path,) = (work / "s/.submitit").glob("*_0/*_log.out")
    assert path.read_text().count("Stopped and saved after step") == 1
    assert path.read_text().count("Asking SLURM to requeue job") == 1
    whole = run("train", *options(tree, "trainer.max_epochs=4", "hydra.run.dir=whole"))
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert_same_runs(work / "s/0", work / "whole")


@pytest.mark.parametrize("partition", ["main", "grace"])
def test_sweep_sbatch(partition: str, cluster: Cluster, work: Path, tree: Path) -> None:
    """Two steps at once; all are signalled, by a person or in the GraceTime of a preemption, and the unfinished one
    resumes when the script is started again."""
    words = options(tree, "trainer.max_epochs=1,5", *probe(work / "seen", slow_s=0.4))
    words[-2] = f"+callbacks.probe.folder='{work}/seen${{trainer.max_epochs}}'"
    sbatch = ("--nodes=1", "--gpus-per-node=0", "--cpus-per-task=4", f"--partition={partition}")
    env = {"DEVICES_PER_NODE": "2", "PYTHONPATH": PROBES, **cluster.forked}
    job = cluster.submit(*sbatch, ROOT / "scripts/sweep.sbatch", *words, cwd=work, env=env)
    sweep_dir = work / "runs/imagefolder_mobilenet_v2" / f"slurm_{job}"
    cluster.until(lambda: (sweep_dir / "0/summary.json").exists() and (sweep_dir / "1/metrics.csv").exists())
    finished = (sweep_dir / "0/summary.json").stat().st_mtime_ns
    if partition == "grace":
        cluster.preempt(job, work)
    else:
        cluster.run(["scancel", "--signal=USR2", "--batch", job])
        cluster.until(lambda: cluster.job(job)["Restarts"] == "1")
    (work / "seen5/fast").touch()
    fields = cluster.end(job)
    log = (work / f"slurm-{job}.log").read_text()
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "1"), log
    assert log.rstrip().endswith("0 jobs failed")
    assert (sweep_dir / "0/summary.json").stat().st_mtime_ns == finished
    for number, epochs in enumerate((1, 5)):
        assert summary(sweep_dir / str(number))["epochs"] == epochs
        images = seen(work / f"seen{epochs}")
        assert {epoch: sorted(each) for epoch, each in images.items()} == {n: list(range(29)) for n in range(epochs)}
