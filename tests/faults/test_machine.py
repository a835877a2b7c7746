"""A machine with a small /dev/shm, or few open files."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import PROBES, clean_environ
from faults.trainings import QUIET, End, short, told


def in_shell(before: str, folder: Path, *options: str) -> End:
    """Run a training after these lines of a shell, whose mounts nobody else sees."""
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("needs root, and the right to unshare")
    words = [sys.executable, "-m", "imagenet_ddp.train", *options, *QUIET, "hydra.run.dir=r"]
    started = time.monotonic()
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{before} && exec "$@"', "sh", *words], cwd=folder, capture_output=True,
        text=True, env=clean_environ(PYTHONPATH=PROBES), timeout=240,
    )  # fmt: skip
    return End(done.returncode, done.stdout, done.stderr, time.monotonic() - started)


@pytest.mark.slow
def test_small_shared_memory(tree: Path, tmp_path: Path) -> None:
    """/dev/shm has only 64 KB, with 2 ranks of 2 loader processes each: the run ends with a message that names the
    setting to change."""
    options = short(tree, "trainer.devices=2", "data.num_workers=2")
    ended = in_shell("mount -t tmpfs -o size=64k tmpfs /dev/shm", tmp_path, *options)
    assert ended.code == 1, ended.out + ended.err
    told(ended, "DataLoader workers cannot send batches, because /dev/shm is full. Hint: start the container with "
         "docker run --ipc=host")  # fmt: skip
    assert "leaked semaphore" not in ended.err


@pytest.mark.slow
@pytest.mark.parametrize("limit", [44, 50])  # reached while loader processes start, or by batches in transit
def test_few_open_files(limit: int, tree: Path, tmp_path: Path) -> None:
    """A process may open only a few files (ulimit -n), with 8 loader processes: the run ends with a message that names
    the setting to change."""
    ended = in_shell(f"ulimit -n {limit}", tmp_path, *short(tree, "data.num_workers=8"))
    assert ended.code == 1, ended.out + ended.err
    told(ended, f"too many open files: each batch in transit needs several, and this process may open {limit} "
         "(ulimit -n). Hint: ")  # fmt: skip
    assert len(ended.err.splitlines()) == 1, ended.err
