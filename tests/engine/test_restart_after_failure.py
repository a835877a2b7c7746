"""When a command does not start its training again. tests/faults/test_kill.py has whole restarts."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from imagenet_ddp.config.schema.commands import TrainConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.engine import restart_after_failure
from imagenet_ddp.engine.job import Job
from imagenet_ddp.runs.signals import SignalExit

JOB = Job(to_config({"cluster": {"max_restarts": 1}}, TrainConfig), Path("run"))


@pytest.fixture(autouse=True)
def no_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("started again")

    monkeypatch.setattr(os, "execv", refuse)
    monkeypatch.setattr(os, "closerange", lambda *numbers: None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_in_the_pause_counts(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    # not time.sleep itself: what another test has left may sleep in a thread
    clock = SimpleNamespace(sleep=lambda seconds: signal.raise_signal(number))
    monkeypatch.setattr(restart_after_failure, "time", clock)
    with pytest.raises(SignalExit):
        restart_after_failure.restart(JOB, WorkersFailedError(1), [])


def test_what_was_to_stop_and_then_failed_stays_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a disk that is full when the checkpoint of a stop is written."""
    monkeypatch.setattr(restart_after_failure, "PAUSE_S", 0.0)
    error = WorkersFailedError(1)
    error.is_stopped = True
    restart_after_failure.restart(JOB, error, [])
    restart_after_failure.restart(JOB, WorkersFailedError(2), [])
    monkeypatch.delenv(restart_after_failure.RESTART_COUNT, raising=False)
    with pytest.raises(AssertionError, match="started again"):
        restart_after_failure.restart(JOB, WorkersFailedError(1), [])
    monkeypatch.delenv(restart_after_failure.RESTART_COUNT)
