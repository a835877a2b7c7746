import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_ddp.callbacks import core_watch
from imagenet_ddp.callbacks.core_watch import CoreWatch
from imagenet_ddp.system.idle_cores import CpuTimes


class Machine:
    """Two cores, on which a training and other programs use CPU time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = CpuTimes(0.0, 0.0, 0.0)
        self.lines: list[str] = []
        self.watch = CoreWatch(num_threads=2, num_alike=1, num_cores=2, say=self.lines.append)
        monkeypatch.setattr(core_watch, "_read", lambda trainer: self.now)
        monkeypatch.setattr(core_watch, "time", SimpleNamespace(monotonic=lambda: self.now.at_s))
        self.step()

    def spend(self, seconds: float, own: float, others: float) -> None:
        now = self.now
        busy_s = now.busy_s + seconds * (own + others)
        self.now = dataclasses.replace(now, at_s=now.at_s + seconds, busy_s=busy_s, own_s=now.own_s + seconds * own)

    def step(self) -> None:
        nothing: Any = None
        self.watch.on_train_batch_end(nothing, nothing, nothing, nothing, 0)

    def train(self, seconds: int, step_s: float, own: float = 2.0, others: float = 0.0) -> None:
        """Train steps of step_s seconds. own, others: cores that this process and others use."""
        for _ in range(int(seconds / step_s)):
            self.spend(step_s, own, others)
            self.step()

    def validate(self, seconds: float) -> None:
        nothing: Any = None
        self.watch.on_validation_start(nothing, nothing)
        self.spend(seconds, 2.0, 0.0)
        self.watch.on_validation_end(nothing, nothing)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_load_that_comes_later_is_said_once(machine: Machine):
    machine.train(20, 0.1)
    machine.train(30, 0.5, own=1.2, others=0.8)
    (line,) = machine.lines
    assert "3.0 times as much CPU time as at first, because other programs use 0.8 of 2 cores" in line
    assert line.endswith("add cluster.num_threads=1 to the command that it then prints.")


def test_what_is_not_reported(machine: Machine):
    machine.train(6, 0.1, own=1.2, others=0.8)
    machine.train(20, 0.1, own=1.2, others=0.8)  # the load was there from the start
    machine.train(20, 0.3)  # unfrozen layers
    machine.train(5, 0.5, own=1.2, others=0.8)  # a short load
    machine.train(20, 0.1)
    for _ in range(10):
        machine.train(3, 0.1)
        machine.validate(20)  # its CPU time is not that of steps
    assert machine.lines == []
