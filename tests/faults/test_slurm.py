"""SLURM's own processes die while a job trains."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from conftest import PROBES, ROOT
from faults.trainings import QUIET, SLOW, assert_same, short
from helpers.slurm_cluster import Cluster

pytestmark = pytest.mark.slow


def processes_of(folder: Path) -> list[psutil.Process]:
    """All that was started in this folder, of a job."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.pid != os.getpid():
                found.append(process)
        except psutil.Error:
            pass
    return found


def test_killed_launcher(cluster: Cluster, tree: Path, unharmed: Callable[..., Path], work: Path) -> None:
    """SIGKILL of srun in the middle of an epoch: no process of the job remains, and the same script, submitted again,
    continues the run bit-exactly."""
    options = [option for option in short(tree) if not option.startswith("trainer.devices=")]
    words = [*options, "hydra.run.dir=r"]

    def submit(*more: str) -> str:
        return cluster.submit(
            "--gpus-per-node=0", "--cpus-per-task=2", "--nodes=1", ROOT / "scripts/train.sbatch", *words, *more,
            cwd=work, env={"DEVICES": "1", "PYTHONPATH": PROBES, **cluster.forked},
        )  # fmt: skip

    job = submit(*SLOW)
    log = work / f"slurm-{job}.log"
    seen = work / "p/seen0.jsonl"
    cluster.until(lambda: seen.exists() and len(seen.read_text().splitlines()) > 2)
    victims = [each for each in processes_of(work) if "srun" in Path(each.cmdline()[0]).name]
    assert victims, [each.cmdline() for each in processes_of(work)]
    for each in victims:
        if each.is_running():
            os.kill(each.pid, signal.SIGKILL)
    state = cluster.end(job)["JobState"]
    assert state in ("FAILED", "NODE_FAIL", "CANCELLED", "COMPLETED"), state
    cluster.until(lambda: not processes_of(work))
    again = submit(*QUIET)
    assert cluster.end(again)["JobState"] == "COMPLETED", (work / f"slurm-{again}.log").read_text()
    assert_same(unharmed(), work / "r")
    assert "Traceback" not in log.read_text()
