"""A batch that does not arrive is reported, and a loader process that dies is named with the likely reason."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import SMALL, clean_environ
from helpers import forked_commands

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
    assert watch.failure == (
        "timed out after 0.4 s (data.loader_timeout_s): Rank 1 got no batch of images from /data/train (processes "
        "100, 101). Hint: check that the disk of the images still responds, and that no process is stopped (kill -CONT "
        "resumes it). If the disk is only slow, set a larger data.loader_timeout_s."
    )


# ---- deaths --------------------------------------------------------------------------------------------------------

DYING = """
    import os, signal, sys
    from pathlib import Path
    import torch
    from torch.utils.data import DataLoader
    from imagenet_ddp.data.loader_failures import StallWatchdog, explain_failures
    from imagenet_ddp.data.workers import init_worker, start_fork_server
    from imagenet_ddp.errors import RunError

    what, method = sys.argv[1:]
    armed = Path(f"{__file__}.{what}")

    class Images:
        def __len__(self):
            return 200

        def __getitem__(self, index):
            if index == 7:
                if what.startswith("SIG") and (what != "SIGSTOP" or armed.exists()):
                    os.kill(os.getpid(), getattr(signal, what))
                if what == "exit":
                    os._exit(3)
            return torch.zeros(2**18)  # 1 MiB

    if __name__ == "__main__":
        if method == "forkserver":
            start_fork_server()
        loader = DataLoader(Images(), batch_size=None, num_workers=2, multiprocessing_context=method,
                            persistent_workers=True, worker_init_fn=init_worker)
        before = signal.getsignal(signal.SIGCHLD)
        try:
            kept = list(explain_failures(loader.__iter__, loader, StallWatchdog(loader)))
            armed.touch()  # its processes have started
            watchdog = StallWatchdog(loader, "", "Rank 3", print, timeout_s=4)
            kept = list(explain_failures(loader.__iter__, loader, watchdog))
        except RunError as error:
            assert signal.getsignal(signal.SIGCHLD) == before
            print("RunError:", error)
        loader._iterator._shutdown_workers()  # they are deaf to the signal that would end them
"""


@pytest.fixture
def dying(tmp_path: Path) -> Path:
    script = tmp_path / "dying.py"
    script.write_text(textwrap.dedent(DYING))
    return script


@pytest.mark.slow
@linux_only
def test_the_cause_is_said_and_what_to_set(dying: Path):
    cases = {
        ("SIGSEGV", "fork"): r"was killed by SIGSEGV\. A library crashed.* Hint: .*prepare=check",
        ("SIGBUS", "fork"): r"was killed by SIGBUS\. /dev/shm is full.* Hint: .*--shm-size=8g",
        ("exit", "forkserver"): r"ended with exit code 3\. Its own error message, if any, is printed above",
        ("SIGSTOP", "forkserver"): r"timed out after 4 s \(data\.loader_timeout_s\): Rank 3 got no batch of "
        r"images \(processes \d+, \d+\)\. Hint: .*kill -CONT",
    }
    where = {"folder": dying.parent, "environment": clean_environ()}
    processes = {case: forked_commands.start(dying.stem, *case, **where) for case in cases}
    for case, process in processes.items():
        said, complaint = process.communicate(timeout=300)
        assert re.search(cases[case], said), (case, said, complaint)
        assert "RunError: " in said
        assert ("Rank 3 has waited" in said) == (case[0] == "SIGSTOP")


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
    sampler = SimpleNamespace(batch_size=32)
    loader = SimpleNamespace(num_workers=4, batch_sampler=sampler, _iterator=SimpleNamespace(_workers=[]))
    found = explain(RuntimeError(text), loader)
    assert isinstance(found, RunError) and re.search(expected, str(found))
