"""Processes that die or stand still while a training runs; tests/faults/test_kill.py kills them at random moments."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.breakages import largest
from faults.trainings import assert_same, begin, end, family, resume, short, told, wait_for


def test_killed_rank(tree: Path, tmp_path: Path) -> None:
    """SIGKILL of one of two ranks in the middle of an epoch: the other rank and the command both report it within
    10 s."""
    running = begin(tmp_path, *short(tree, "trainer.devices=2"), after=2)
    largest(family(running)).kill()
    ended = end(running)
    assert (ended.code, ended.said_s < 10) == (1, True), ended.said_s
    told(ended, "was ended by signal 9 (SIGKILL)")
    assert " is gone: its process, or its machine, no longer answers" in ended.err


@pytest.mark.slow
def test_stopped_rank(tree: Path, unharmed: Callable[..., Path], tmp_path: Path) -> None:
    """SIGSTOP of one of two ranks for longer than strategy.timeout_s: the other rank reports the timeout, all ranks end
    as soon as the stopped one can, and the run continues bit-exactly."""
    options = short(tree, "trainer.devices=2", "data.num_workers=1")
    running = begin(tmp_path, *options, "strategy.timeout_s=5", after=2)
    stopped = largest(family(running))
    stopped.send_signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    wait_for(lambda: "timed out after 5 s (strategy.timeout_s)" in running.err, running)
    said_s = time.monotonic() - stopped_at
    stopped.send_signal(signal.SIGCONT)  # else torch's launcher kills it half a minute later
    ended = end(running)
    assert (ended.code, said_s < 60) == (1, True)
    told(ended, "another rank did not take part in a collective operation. Hint: check whether a process is stopped")
    assert "leaked semaphore" not in ended.err
    resume(tmp_path, *options)
    assert_same(unharmed(2), tmp_path / "r")
