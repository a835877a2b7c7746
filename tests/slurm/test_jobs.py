"""scripts/*.sbatch and srun on a real SLURM: worlds, refusals, time limits, cancelled jobs, drained nodes."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PROBES, ROOT, SMALL, Run
from helpers.slurm_cluster import Cluster
from helpers.train_runs import assert_same_runs, probe, rows, seen, slow_disk, summary

pytestmark = pytest.mark.slow(40)
SCRIPTS = ROOT / "scripts"
NO_GPU = ("--gpus-per-node=0", "--cpus-per-task=2")
ALL = list(range(29))
TRAIN = ("python", "-m", "imagenet_ddp.train")


def options(tree: Path, *more: str) -> list[str]:
    return [*SMALL, f"data.root={tree}", "trainer.log_every_n_steps=1", *more]


def log(work: Path, job: str) -> str:
    return (work / f"slurm-{job}.log").read_text()


def folder(work: Path, name: str) -> Path:
    return work / "runs/imagefolder_mobilenet_v2" / name


def done(run_dir: Path) -> int:
    """Epochs."""
    return len(rows(run_dir)) if (run_dir / "metrics.csv").exists() else 0


@pytest.fixture
def submit(cluster: Cluster, work: Path) -> Callable[..., str]:
    def submit(script: str, *words: str, sbatch: tuple[str, ...] = (), forked: bool = True) -> str:
        env = {"DEVICES": "1", "PYTHONPATH": PROBES, **(cluster.forked if forked else {})}
        return cluster.submit(*NO_GPU, *sbatch, SCRIPTS / script, *words, cwd=work, env=env)

    return submit


def test_a_task_per_node_starts_its_workers(cluster: Cluster, work: Path, tree: Path) -> None:
    job = int(cluster.run(["sbatch", "--parsable", "--wrap=true"], cwd=work).stdout) + 1
    command = ["srun", "--nodes=2", "--ntasks=2", "--cpus-per-task=2", *TRAIN]
    done = cluster.run(
        [*command, *options(tree, "trainer.devices=2", "trainer.max_epochs=1")], cwd=work, env=cluster.forked
    )
    assert summary(folder(work, f"slurm_{job}_0"))["world_size"] == 4
    assert f"Rendezvous: SLURM job {job} at 127.0.0.1:{29500 + job % 1000}" in done.stdout


def test_time_limits(cluster: Cluster, work: Path, tree: Path, submit: Callable[..., str], run: Run) -> None:
    """On two nodes, whose names only SLURM can resolve. A run that its time limit stops ends like one on one node that
    was never stopped."""
    words = options(tree, "trainer.max_epochs=12")  # SLURM looks at time limits every half minute
    job = submit("train.sbatch", *words, *probe(work / "seen", slow_s=1.0), sbatch=("--nodes=2", "--time=60"))
    run_dir = folder(work, f"slurm_{job}_0")
    cluster.until(lambda: done(run_dir))
    cluster.time_out(job)
    (work / "seen/fast").touch()
    fields = cluster.end(job)
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "1"), log(work, job)
    assert log(work, job).count("Stopped and saved after step") == 1
    assert [path.name for path in run_dir.parent.iterdir()] == [run_dir.name]
    content = summary(run_dir)
    assert (content["world_size"], content["num_nodes"]) == (2, 2)
    assert f"Rendezvous: SLURM job {job} at 127.0.0.1:" in log(work, job)
    assert log(work, job).rstrip().endswith("11 of 11 validation images, each once.")
    other = work / "other"
    whole = run("train", *words, "trainer.devices=2", f"hydra.run.dir={other}")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert_same_runs(run_dir, other)
    assert [row["epoch"] for row in rows(run_dir)] == [str(epoch) for epoch in range(1, 13)]
    assert {epoch: sorted(images) for epoch, images in seen(work / "seen").items()} == dict.fromkeys(range(12), ALL)


def test_a_signal_while_it_starts(cluster: Cluster, work: Path, tree: Path, submit: Callable[..., str]) -> None:
    """The signal takes effect after the first step: a job requeued without one could repeat that for ever. Loader
    processes are signalled too. A job that is cancelled is not started again."""
    words = options(tree, "data.num_workers=1", "trainer.max_epochs=100", *probe(work / "seen", slow_s=0.3))
    words += [
        *slow_disk(tree, work, 1),
        "allow_targets=[probe.Probe,slow_disk.open_slowly]",
    ]  # images are listed for some seconds
    job = submit("train.sbatch", *words, sbatch=("--nodes=1",), forked=False)
    cluster.until(lambda: any(work.glob("mark.*")))
    cluster.run(["scancel", "--signal=USR2", job])
    run_dir = work / "runs/open_slowly_mobilenet_v2" / f"slurm_{job}_0"  # named after the source of its own
    cluster.until(lambda: cluster.hasten() or done(run_dir))
    assert "Stopped and saved after step 1, in epoch 1." in log(work, job)
    assert sorted(seen(work / "seen")[0]) == ALL
    cluster.run(["scancel", job])
    fields = cluster.end(job)
    assert (fields["JobState"], fields["Restarts"]) == ("CANCELLED", "1"), log(work, job)
    assert log(work, job).count("Stopped and saved after step") == 2
    assert log(work, job).count("Asking SLURM to requeue job") == 1


def test_a_time_limit_of_two_minutes(cluster: Cluster, work: Path, tree: Path, submit: Callable[..., str]) -> None:
    """It is said before the first step. Doctor, too, reads it from SLURM."""
    job = submit("train.sbatch", *options(tree, "-m", "seed=1,2"), sbatch=("--nodes=1", "--time=2", "--array=1"))
    what = ", 00:02:00, leaves a minute or less before --signal=USR2@120 of its script"
    cluster.until(lambda: "Run folder:" in log(work, job) if (work / f"slurm-{job}.log").exists() else False)
    assert f"The time limit of SLURM job {job}{what}" in log(work, job)
    script = "#!/bin/bash\n#SBATCH --signal=USR2@120\npython -m imagenet_ddp.doctor"
    (work / "doctor.sbatch").write_text(script)
    job = cluster.submit("--time=2", "--output=slurm-%j.log", "doctor.sbatch", cwd=work, env=cluster.forked)
    cluster.end(job)
    assert f"time limit    FAIL The time limit of SLURM job {job}{what}" in log(work, job)


def test_the_corrected_command_of_a_job_submits_it(
    cluster: Cluster, work: Path, tree: Path, submit: Callable[..., str]
) -> None:
    """In a job and in an array, as typed; a task too many is not sent to the last job."""
    words = options(tree, "name='a b'", "seed=1,2")
    said = lambda job: (work / f"slurm-{job}.log").read_text() if (work / f"slurm-{job}.log").exists() else ""  # noqa: E731
    head, corrected = "Corrected command (with your other options of sbatch before the script):\n", list[str]()
    for sbatch, array in {(): "", ("--array=2-6:4",): "--array=2-6:4 "}.items():
        job = submit("train.sbatch", *words, sbatch=("--nodes=1", *sbatch))
        cluster.until(lambda job=job: head in said(job))
        line = log(work, job).partition(head)[2].splitlines()[0]
        corrected = shlex.split(line)
        assert line.startswith(f"sbatch {array}{SCRIPTS}/train.sbatch data=") and corrected[-3:] == [*words[-2:], "-m"]
    env = {"DEVICES": "1", **cluster.forked}
    job = cluster.submit(*NO_GPU, "--nodes=1", "--output=slurm-%j.log", *corrected[1:], cwd=work, env=env)
    what = "SLURM_ARRAY_TASK_ID must be one of the 2 jobs of this sweep, got 6. Hint: use sbatch --array=0-1."
    cluster.until(lambda: what in " ".join(said(job).split()))
    assert "Corrected command" not in said(job)


@pytest.mark.parametrize(("partition", "asked"), [("main", 0), ("grace", 1)])
def test_preemption(
    partition: str, asked: int, cluster: Cluster, work: Path, tree: Path, submit: Callable[..., str]
) -> None:
    """SLURM requeues the job itself, but not if it ends within a GraceTime. Nothing has to be typed."""
    words = options(tree, "trainer.max_epochs=4", *probe(work / "seen", slow_s=1.0))
    job = submit("train.sbatch", *words, sbatch=("--nodes=2", f"--partition={partition}"))
    cluster.until(lambda: done(folder(work, f"slurm_{job}_0")))
    cluster.preempt(job, work)
    (work / "seen/fast").touch()
    fields = cluster.end(job)
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "1"), log(work, job)
    assert log(work, job).count("Stopped and saved after step") == 1
    assert log(work, job).count("Asking SLURM to requeue job") == asked
    assert "Continue with" not in log(work, job)
    assert {epoch: sorted(images) for epoch, images in seen(work / "seen").items()} == dict.fromkeys(range(4), ALL)


def test_torchrun_sbatch(cluster: Cluster, work: Path, tree: Path, submit: Callable[..., str]) -> None:
    """One agent per node; the signal reaches its workers and does not end the agent."""
    words = options(tree, "trainer.max_epochs=6", *probe(work / "seen", slow_s=1.0))
    job = submit("train_torchrun.sbatch", *words, sbatch=("--nodes=2",))
    cluster.until(lambda: (work / "seen/seen0.jsonl").exists())
    cluster.run(["scancel", "--signal=USR2", job])
    cluster.until(lambda: cluster.job(job)["Restarts"] == "1")
    (work / "seen/fast").touch()
    fields = cluster.end(job)
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "1"), log(work, job)
    (run_dir,) = folder(work, "").iterdir()
    assert (run_dir.name, summary(run_dir)["world_size"]) == (f"torchrun_{job}", 2)
    assert [row["epoch"] for row in rows(run_dir)] == [str(epoch) for epoch in range(1, 7)]
    assert {epoch: sorted(images) for epoch, images in seen(work / "seen").items()} == dict.fromkeys(range(6), ALL)


def test_doctor_sbatch(cluster: Cluster, work: Path, tree: Path, submit: Callable[..., str]) -> None:
    job = submit("doctor.sbatch", *options(tree), sbatch=("--nodes=2", "--output=slurm-%j.log"))
    cluster.end(job)
    assert f"SLURM job {job} at 127.0.0.1:" in log(work, job)
    assert "all 2 have met" in log(work, job)
    # on a machine with other work two nodes may really be slower than one
    assert [line for line in log(work, job).splitlines() if "FAIL" in line and "scaling" not in line] == []
