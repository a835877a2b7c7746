"""python -m imagenet_ddp.submit on a real SLURM: what it makes trains, alone and as a job array."""

import re
import sys
from pathlib import Path

import pytest
from cluster import Cluster
from conftest import SMALL
from test_train import summary

pytestmark = pytest.mark.slow
SUBMIT = (sys.executable, "-m", "imagenet_ddp.submit")
NOW = ("submit.now=true", "submit.cpus_per_device=1", "submit.time=5")


def submit(cluster: Cluster, work: Path, tree: Path, *words: str) -> tuple[str, list[str]]:
    """(the job's number, what is said)."""
    options = [*SMALL, "trainer.max_epochs=1", f"data.root={tree}"]
    said = cluster.run([*SUBMIT, *options, *NOW, *words], cwd=work).stdout.splitlines()
    found = re.match(r"Job (\d+)", said[0])
    assert found, said
    return found[1], said


def test_one_node_and_two_devices(cluster: Cluster, work: Path, tree: Path) -> None:
    job, said = submit(cluster, work, tree, "trainer.devices=2", "submit.out=my jobs/train.sbatch")
    assert said[0] == f"Job {job}: my jobs/train.sbatch"
    commands = [line.partition(" #")[0].split() for line in said[1:]]
    assert commands == [["squeue", f"--job={job}"], ["tail", "-F", f"slurm-{job}.log"], ["scancel", job]]
    fields = cluster.end(job)
    log = (work / f"slurm-{job}.log").read_text()
    assert (fields["JobState"], fields["NumNodes"], fields["NumCPUs"]) == ("COMPLETED", "1", "2"), log
    (run_dir,) = (work / "runs/imagefolder_mobilenet_v3_small").iterdir()
    assert summary(run_dir)["world_size"] == 2
    assert f"Rendezvous: slurm job {job}" in log


def test_a_sweep_is_an_array(cluster: Cluster, work: Path, tree: Path) -> None:
    words = ("-m", "seed=3,5", "trainer.devices=1", "submit.array_parallelism=2")
    job, said = submit(cluster, work, tree, *words)
    assert re.fullmatch(rf"Job {job}, an array of 2: slurm/imagefolder_mobilenet_v3_small_[\d_-]+\.sbatch", said[0])
    assert said[2].split()[:3] == ["tail", "-F", f"slurm-{job}_0.log"]
    for number, seed in enumerate((3, 5)):
        fields = cluster.end(f"{job}_{number}")
        log = (work / f"slurm-{job}_{number}.log").read_text()
        assert fields["JobState"] == "COMPLETED", log
        found = summary(work / f"runs/imagefolder_mobilenet_v3_small/slurm_{job}/{number}")
        assert (found["seed"], found["world_size"]) == (seed, 1)


def test_what_sbatch_refuses_is_said(cluster: Cluster, work: Path, tree: Path) -> None:
    done = cluster.run(
        [*SUBMIT, "submit.now=true", "submit.partition=nowhere", "submit.out=a.sbatch"], cwd=work, check=False
    )
    assert done.returncode == 1
    assert "sbatch refuses a.sbatch: " in " ".join(done.stderr.split()) and "partition" in done.stderr
    assert "#SBATCH --partition=nowhere" in (work / "a.sbatch").read_text()
