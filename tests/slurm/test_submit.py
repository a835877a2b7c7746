"""python -m imagenet_ddp.submit on a real SLURM: jobs and job arrays get what the command requests."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from conftest import PROBES, SMALL
from helpers.slurm_cluster import Cluster
from helpers.train_runs import probe, seen, summary

pytestmark = pytest.mark.slow
SUBMIT = (sys.executable, "-m", "imagenet_ddp.submit")


def number(output: str) -> str:
    """Of the job, from sbatch's own message."""
    found = re.fullmatch(r"Submitted batch job (\d+)", output.splitlines()[-1])
    assert found, output
    return found[1]


def test_two_nodes_with_two_gpus(cluster: Cluster, work: Path) -> None:
    """The line is typed in a shell; its options win over those in the script. The GPUs are fake, so the job is held and
    cancelled."""
    words = ["trainer.num_nodes=2", "trainer.devices=2", "submit.cpus_per_device=1", "submit.time=5",
             'submit.extra="--comment=x --hold"']  # fmt: skip
    line = cluster.run([*SUBMIT, *words], cwd=work).stdout
    job = number(cluster.run(["bash", "-c", line], cwd=work).stdout)
    fields = cluster.job(job)
    cluster.run(["scancel", job])
    assert (fields["JobState"], fields["NumNodes"], fields["NumTasks"]) == ("PENDING", "2-2", "4")
    assert (fields["TresPerNode"], fields["CPUs/Task"]) == ("gres:gpu:2", "1")
    assert (fields["TimeLimit"], fields["Comment"], fields["Requeue"]) == ("00:05:00", "x", "1")


def test_a_sweep_is_an_array(cluster: Cluster, work: Path, tree: Path) -> None:
    """Each task runs the job of its number, all in one folder; one is signalled and resumes."""
    words = [*SMALL, f"data.root={tree}", "submit.time=5", "submit.now=true", "-m", "seed=3,5", "trainer.max_epochs=4",
             "trainer.devices=1",
                    "name='a b'", *probe(work / "seen", slow_s=0.5)]  # fmt: skip
    words[-2] = f"+callbacks.probe.folder='{work}/seen${{seed}}'"
    line, output = cluster.run(
        [*SUBMIT, *words], cwd=work, env={"PYTHONPATH": PROBES, **cluster.forked}
    ).stdout.splitlines()
    assert {"--array=0-1", "--ntasks-per-node=1"} <= {*shlex.split(line)}
    job = number(output)
    cluster.until(lambda: (work / "seen5/seen0.jsonl").exists())
    cluster.run(["scancel", "--signal=USR2", f"{job}_1"])
    cluster.until(lambda: cluster.job(f"{job}_1")["Restarts"] == "1")
    for seed in (3, 5):
        (work / f"seen{seed}").mkdir(exist_ok=True)  # the other task may not have begun
        (work / f"seen{seed}/fast").touch()
    sweep_dir = work / "runs/a b" / f"slurm_{job}"
    for task, seed in enumerate((3, 5)):
        fields = cluster.end(f"{job}_{task}")
        assert fields["JobState"] == "COMPLETED", (work / f"slurm-{job}_{task}.log").read_text()
        found = summary(sweep_dir / str(task))
        assert (found["seed"], found["world_size"]) == (seed, 1)
        images = {epoch: sorted(each) for epoch, each in seen(work / f"seen{seed}").items()}
        assert images == {epoch: list(range(29)) for epoch in range(4)}
    assert cluster.job(f"{job}_1")["Restarts"] == "1"
    assert sorted(path.name for path in sweep_dir.iterdir()) == ["0", "1", "sweep.yaml"]
    assert yaml.safe_load((sweep_dir / "sweep.yaml").read_text())["jobs"] == [["seed=3"], ["seed=5"]]
