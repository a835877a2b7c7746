"""What the batch scripts do with the signals that ask for a restart. tests/slurm/ runs them in a SLURM cluster."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from conftest import ROOT

from imagenet_ddp.system.stop_signals import RESTART_SIGNALS

PROGRAMS = {  # in place of those of a cluster
    "python": "echo '0 seed=0'; echo '1 seed=1'",  # the jobs of the sweep
    "scontrol": 'echo "$@" >>asked',
    "scancel": "kill -USR2 $(cat step)",
    "torchrun": "kill -$NUMBER $$; echo survived",
}
STEP = "trap 'exit 140' USR2; echo $$ >step; for _ in {1..300}; do sleep 0.1; done"
COMMAND = 'while [[ $1 == --* ]]; do shift; done; exec "$@"'
JOB = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "n"}


def start(folder: Path, script: str, srun: str, number: int) -> "subprocess.Popen[str]":
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/activate").touch()
    for name, lines in {**PROGRAMS, "srun": srun}.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{lines}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    environ = {"PATH": f"{folder}:{os.environ['PATH']}", "NUMBER": str(number), **JOB}
    return subprocess.Popen(
        ["bash", ROOT / "scripts" / script], cwd=folder, env=environ, text=True, stdout=subprocess.PIPE
    )


@pytest.mark.parametrize("number", RESTART_SIGNALS)
def test_a_sweep_saves_and_is_requeued(number: int, tmp_path: Path) -> None:
    script = start(tmp_path, "sweep.sbatch", STEP, number)
    while not (tmp_path / "step").exists():
        assert script.poll() is None
        time.sleep(0.05)
    script.send_signal(number)
    printed = script.communicate(timeout=30)[0]
    assert script.returncode == 0 and "0 jobs failed" in printed
    assert (tmp_path / "asked").read_text().splitlines()[-1] == "requeue 7"


@pytest.mark.parametrize("number", RESTART_SIGNALS)
def test_torchrun_is_not_killed(number: int, tmp_path: Path) -> None:
    assert start(tmp_path, "train_torchrun.sbatch", COMMAND, number).communicate(timeout=30)[0] == "survived\n"


@pytest.mark.parametrize("script", ["train", "doctor", "sweep", "train_torchrun"])
def test_a_missing_environment_is_named(script: str, tmp_path: Path) -> None:
    """Submitted from another folder, with a Python that lacks the package."""
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    command, environ = ["bash", ROOT / f"scripts/{script}.sbatch"], {"PATH": f"{tmp_path}:{os.environ['PATH']}", **JOB}
    done = subprocess.run(command, cwd=tmp_path, env=environ, text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"there is no .venv in {tmp_path}, and python does not have imagenet_ddp. Hint: ")
