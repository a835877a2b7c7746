"""A batch that does not arrive, and the likely reason why a loader process died."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from conftest import SMALL, clean_environ

from imagenet_ddp.data import loader_failures
from imagenet_ddp.data.loader_failures import StallWatchdog, explain

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


class Loader(SimpleNamespace):
    """One that can be referred to weakly."""


def test_after_the_bound_the_processes_end_and_at_last_this_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """Where a disk holds even a process that is killed."""
    monkeypatch.setattr(loader_failures, "FIRST_S", 0.2)
    monkeypatch.setattr(loader_failures, "LAST_S", 0.2)
    said: list[str] = []
    left: list[int] = []
    killed: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    workers = [SimpleNamespace(pid=pid, kill=partial(killed.append, pid)) for pid in (100, 101)]
    loader: Any = Loader(_iterator=SimpleNamespace(_workers=workers))
    watch = StallWatchdog(loader, "/data/train", "Rank 1", said.append, 0.4)

    def stalled() -> Iterator[int]:
        deadline_s = time.monotonic() + 60
        while not left and time.monotonic() < deadline_s:
            time.sleep(0.02)
        yield 0

    assert list(watch.watch(stalled)) == [0]
    assert (killed, left) == ([100, 101], [1])
    assert said[0].startswith("Rank 1 has waited 0 s for a batch of images from /data/train (processes 100, 101).")
    assert capfd.readouterr().err == f"{watch.failure}\n"
    assert "Rank 1 got no batch of images from /data/train (processes 100, 101). Hint: check that" in watch.failure


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((0, 1, -signal.SIGSEGV), "was killed by SIGSEGV. A library crashed, most likely on an image. Hint: run `py"),
        ((-signal.SIGTERM, -signal.SIGBUS), "was killed by SIGBUS. /dev/shm is full, or a packed file was truncated."),
        ((3,), "ended with exit code 3. Its own error message, if any, is printed above."),
    ],
)
def test_how_a_process_ended(codes: tuple[int, ...], expected: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loader_failures.multiprocessing.connection, "wait", lambda *_, **__: [])
    workers = [SimpleNamespace(pid=pid, exitcode=code, sentinel=0) for pid, code in enumerate(codes, 1)]
    loader = SimpleNamespace(num_workers=3, _iterator=SimpleNamespace(_workers=workers))
    found = explain(RuntimeError("DataLoader worker (pid(s) 101) exited unexpectedly"), loader)
    assert found.startswith(f"DataLoader worker {len(codes)} (one of 3) {expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unable to open shared memory object </torch_1_2> in read-write mode: Too many open files (24)", r"ulimit"),
        ("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)", r"shm is full\. "),
    ],
)  # fmt: skip
def test_what_a_process_could_still_say(text: str, expected: str):
    loader = SimpleNamespace(num_workers=4, _iterator=SimpleNamespace(_workers=[]))
    assert re.search(expected, explain(RuntimeError(text), loader))


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
        below = psutil.Process(process.pid).children(recursive=True)
        next(each for each in below if "forkserver" in str(each.cmdline()) and not each.children()).kill()
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
