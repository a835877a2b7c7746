"""A machine with a small /dev/shm, or few open files."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import PROBES, clean_environ
from faults.trainings import QUIET, End, end, short, told
from helpers.forked_commands import Command
from helpers.hosts import first

TRAIN = ("imagenet_ddp.train", *QUIET, "hydra.run.dir=r")


@pytest.mark.slow
def test_small_shared_memory(tree: Path, tmp_path: Path) -> None:
    """/dev/shm has only 64 KB, with 2 ranks of 2 loader processes each: the run ends with a message that names the
    setting to change."""
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("needs root, and the right to unshare")
    options, environment = short(tree, "trainer.devices=2", "data.num_workers=2"), clean_environ(PYTHONPATH=PROBES)
    mounted = "mount -t tmpfs -o size=64k tmpfs /dev/shm && echo $$ && exec cat"  # which nobody else sees
    with first(["unshare", "-m", "sh", "-c", mounted]) as (_, host):
        ended = end(Command(*TRAIN, *options, folder=tmp_path, environment=environment, host=host))
    assert ended.code == 1, ended.out + ended.err
    told(ended, "DataLoader workers cannot send batches, because /dev/shm is full. Hint: start the container with "
         "docker run --ipc=host")  # fmt: skip
    assert "leaked semaphore" not in ended.err


@pytest.mark.slow
@pytest.mark.parametrize("limit", [44, 50])  # reached while loader processes start, or by batches in transit
def test_few_open_files(limit: int, tree: Path, tmp_path: Path) -> None:
    """A process may open only a few files (ulimit -n), with 8 loader processes: the run ends with a message that names
    the setting to change."""
    words = [sys.executable, "-m", *TRAIN, *short(tree, "data.num_workers=8")]
    started = time.monotonic()
    done = subprocess.run(
        ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh", *words], cwd=tmp_path, capture_output=True,
        text=True, env=clean_environ(PYTHONPATH=PROBES), timeout=240,
    )  # fmt: skip
    ended = End(done.returncode, done.stdout, done.stderr, time.monotonic() - started)
    assert ended.code == 1, ended.out + ended.err
    told(ended, f"too many open files: each batch in transit needs several, and this process may open {limit} "
         "(ulimit -n). Hint: ")  # fmt: skip
    # on a busy machine, others say that the imports take their time
    assert len([line for line in ended.err.splitlines() if not line.startswith("Loading PyTorch")]) == 1, ended.err
