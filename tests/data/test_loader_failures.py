"""A batch that does not arrive is reported, and a loader process that dies is named with the likely reason."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import SMALL, clean_environ

from imagenet_ddp.data import loader_failures
from imagenet_ddp.data.loader_failures import StallWatchdog, explain
from imagenet_ddp.errors import RunError

LOCATION = "/data/train"
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


class Loader(SimpleNamespace):
    """One that can be referred to weakly."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_failures, "FIRST_S", 0.2)
    monkeypatch.setattr(loader_failures, "LAST_S", 0.2)


@pytest.fixture
def said() -> list[str]:
    return []


def processes(*pids: int, kill: Callable[[int], None] = lambda pid: None) -> Any:
    workers = [SimpleNamespace(pid=pid, kill=partial(kill, pid)) for pid in pids]
    return Loader(_iterator=SimpleNamespace(_workers=workers))


def test_after_the_bound_the_processes_end_and_at_last_this_one(
    said: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """Where a disk holds even a process that is killed."""
    left: list[int] = []
    killed: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    loader = processes(100, 101, kill=killed.append)
    watch = StallWatchdog(loader, LOCATION, "Rank 1", said.append, 0.4)

    def stalled() -> Iterator[int]:
        deadline_s = time.monotonic() + 60
        while not left and time.monotonic() < deadline_s:
            time.sleep(0.02)
        yield 0

    assert list(watch.watch(stalled)) == [0]
    assert killed == [100, 101]
    assert left == [1]
    assert capfd.readouterr().err == f"{watch.failure}\n"
    assert "Rank 1 got no batch of images from /data/train (processes 100, 101). Hint: check that" in watch.failure


# ---- deaths --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (-signal.SIGSEGV, "was killed by SIGSEGV. A library crashed, most likely on an image. Hint: run `python -m"),
        (-signal.SIGBUS, "was killed by SIGBUS. /dev/shm is full, or a packed file was truncated. Hint: start the"),
        (3, "ended with exit code 3. Its own error message, if any, is printed above."),
    ],
)
def test_how_a_process_ended(code: int, expected: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loader_failures, "_exits", lambda loader, wait: [(100, 0), (101, code)])
    found = explain(RuntimeError("DataLoader worker (pid(s) 101) exited unexpectedly"), SimpleNamespace(num_workers=2))
    assert str(found).startswith(f"DataLoader worker 101 (one of 2) {expected}")


@pytest.mark.slow
@linux_only
def test_training_ends_with_one_sentence(tree: Path, tmp_path: Path):
    """A person, or the kernel, kills a loader process of a training that runs."""
    command = [
        sys.executable, "-m", "imagenet_ddp.train", *SMALL, f"data.root={tree}", "trainer.max_epochs=100000",
        "data.num_workers=2",
    ]  # fmt: skip
    errors = (tmp_path / "errors").open("w+")
    process = subprocess.Popen(
        command, cwd=tmp_path, env=clean_environ(), stdout=subprocess.PIPE, stderr=errors, text=True
    )
    assert process.stdout is not None
    watch = threading.Timer(120, process.kill)
    watch.start()
    try:
        while not process.stdout.readline().startswith("epoch 2/"):
            assert process.poll() is None
        workers = [pid for pid in _below(process.pid) if "forkserver" in _command(pid) and not _children(pid)]
        os.kill(workers[0], signal.SIGKILL)
        process.communicate(timeout=60)
    finally:
        watch.cancel()
        process.kill()
    errors.seek(0)
    said = errors.read()
    errors.close()
    assert process.returncode == 1
    assert re.search(r"DataLoader worker \d+ \(one of 2\) was killed by SIGKILL", said)
    assert "Traceback" not in said


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _below(pid: int) -> list[int]:
    children = _children(pid)
    return children + [each for child in children for each in _below(child)]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Too many open files. Communication with the workers is no longer possible", r"may open \d+ \(ulimit -n\)"),
        ("unable to open shared memory object </torch_1_2> in read-write mode: Too many open files (24)", r"ulimit"),
        ("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)", r"shm is full\. "),
    ],
)  # fmt: skip
def test_what_a_process_could_still_say(text: str, expected: str):
    loader = SimpleNamespace(num_workers=4, _iterator=SimpleNamespace(_workers=[]))
    found = explain(RuntimeError(text), loader)
    assert isinstance(found, RunError) and re.search(expected, str(found))
