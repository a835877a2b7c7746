"""A batch that does not arrive is reported; a slow one is not."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_ddp.data import stall_watchdog
from imagenet_ddp.data.stall_watchdog import StallWatchdog

LOCATION = "/data/train"


class Loader(SimpleNamespace):
    """One that can be referred to weakly."""


ALONE = Loader()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall_watchdog, "FIRST_S", 0.2)
    monkeypatch.setattr(stall_watchdog, "LAST_S", 0.2)


@pytest.fixture
def said() -> list[str]:
    return []


def late(*pauses_s: float) -> Callable[[], Iterator[int]]:
    def batches() -> Iterator[int]:
        for number, pause_s in enumerate(pauses_s):
            time.sleep(pause_s)
            yield number

    return batches


def processes(*pids: int, kill: Callable[[int], None] = lambda pid: None) -> Any:
    workers = [SimpleNamespace(pid=pid, kill=partial(kill, pid)) for pid in pids]
    return Loader(_iterator=SimpleNamespace(_workers=workers))


def test_who_waits_for_which_processes_is_said_ever_more_rarely(said: list[str]):
    loader = processes(100, 101)
    watch = StallWatchdog(loader, LOCATION, "Rank 1", said.append)
    assert list(watch.watch(late(0.0, 1.1, 0.0))) == [0, 1, 2]
    assert len(said) in (1, 2, 3), "after 0.2, 0.4 and 0.8 s, or later on a busy machine"
    assert said[0].partition(" s for ")[2] == (
        "a batch of images from /data/train (processes 100, 101). "
        "The run ends after 1800 s (data.loader_timeout_s), or at the third Ctrl-C at the latest."
    )
    assert said[0].startswith("Rank 1 has waited 0")


def test_who_works_is_not_waited_for(said: list[str]):
    watch = StallWatchdog(ALONE, say=said.append)
    for _ in watch.watch(late(0.1, 0.1, 0.1)):  # which are late in all, but none of them
        time.sleep(0.4)
    assert said == []


def test_a_process_that_reads_itself_is_named(said: list[str]):
    assert list(StallWatchdog(ALONE, say=said.append, timeout_s=0).watch(late(0.8))) == [0]
    assert f"for a batch of images (process {os.getpid()}). The run ends at the third Ctrl-C" in said[0]


def test_after_the_bound_the_processes_end_and_at_last_this_one(
    said: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """Where a disk holds even a process that is killed."""
    left: list[int] = []
    killed: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    loader = processes(100, 101, kill=killed.append)
    watch = StallWatchdog(loader, LOCATION, "Rank 1", said.append, 0.4)
    assert list(watch.watch(late(3.0))) == [0]
    assert killed == [100, 101]
    assert left == [1]
    assert capfd.readouterr().err == f"{watch.failure}\n"
    assert watch.failure == (
        "timed out after 0.4 s (data.loader_timeout_s): Rank 1 got no batch of images from /data/train (processes "
        "100, 101). Hint: check that the disk of the images still responds, and that no process is stopped (kill -CONT "
        "resumes it). If the disk is only slow, set a larger data.loader_timeout_s."
    )


def test_a_loader_is_not_kept_alive():
    """Else its processes, which are deaf, would be waited for at the end of the program."""
    loader = Loader()
    gone = weakref.ref(loader)
    batches = StallWatchdog(loader).watch(late(0.0, 0.0))
    next(batches)
    del loader
    assert gone() is None


def test_nobody_watches_after_the_last_batch(said: list[str]):
    batches = StallWatchdog(ALONE, say=said.append).watch(late(0.0, 0.0))
    assert next(batches) == 0
    assert "stall watchdog" in [thread.name for thread in threading.enumerate()]
    batches.close()  # type: ignore[attr-defined]
    time.sleep(0.2)
    assert "stall watchdog" not in [thread.name for thread in threading.enumerate()]
