"""Say once that other programs have begun to use the cores on which a training computes."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import lightning.pytorch as L

from imagenet_ddp.callbacks.measures import cpu_seconds
from imagenet_ddp.system.idle_cores import CpuTimes, cores_used_by_others
from imagenet_ddp.system.text import count_noun

INTERVAL_S = 5.0  # of training; a load must last for two intervals to be reported
GROWTH = 1.5  # of the CPU time of a step since the first interval


class CoreWatch(L.Callback):
    """Compare the CPU time of a step with that of the first INTERVAL_S seconds. Say so once if it has grown while other
    programs use the same cores: the threads of an operation wait for each other in busy loops.

    num_threads: of this process. num_alike: processes of this job on these cores. num_cores: cores that they may use.
    say: writes a line to the log.
    """

    def __init__(self, num_threads: int, num_alike: int, num_cores: int, say: Callable[[str], None]):
        self._num_threads, self._num_alike, self._num_cores, self._say = num_threads, num_alike, num_cores, say
        self._begin: CpuTimes | None = None  # of the current interval, moved on by the time of validations within it
        self._pause: CpuTimes | None = None
        self._steps = self._num_high = 0
        self._first: float | None = None  # CPU seconds of a step in the first interval
        self._is_over = False

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._is_over:
            return
        if self._begin is None:  # the first step also prepares later ones
            self._begin, self._steps = _read(trainer), 0
            self._is_over = self._begin is None
            return
        self._steps += 1
        if time.monotonic() - self._begin.at_s >= INTERVAL_S and (now := _read(trainer)):
            self._compare(self._begin, now)
            self._begin, self._steps = now, 0

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._pause = _read(trainer) if self._begin and not self._is_over else None

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._begin and self._pause and (now := _read(trainer)):
            moved = {name: getattr(self._begin, name) + getattr(now, name) - getattr(self._pause, name)
                     for name in ("at_s", "busy_s", "own_s")}  # fmt: skip
            self._begin = replace(self._begin, **moved)

    def _compare(self, before: CpuTimes, after: CpuTimes) -> None:
        cost = (after.own_s - before.own_s) / self._steps
        if self._first is None:
            self._first = cost
            return
        others, wanted = cores_used_by_others(before, after, self._num_alike), self._num_threads * self._num_alike
        is_high = cost > GROWTH * self._first and others + wanted > self._num_cores + 0.5
        self._num_high = self._num_high + 1 if is_high else 0
        if self._num_high == 2:
            self._is_over = True
            fewer = max(1, round(self._num_cores - others) // self._num_alike)
            self._say(
                f"A step now takes {cost / self._first:.1f} times as much CPU time as at first, because other programs "
                f"use {others:.1f} of {count_noun(self._num_cores, 'core')}, and the "
                f"{count_noun(self._num_threads, 'thread')} of this process wait for each other. Hint: stop the run "
                f"with Ctrl-C, and add cluster.num_threads={min(fewer, self._num_threads - 1)} to the command that it "
                "then prints."
            )


def _read(trainer: L.Trainer) -> CpuTimes | None:
    times = CpuTimes.read()
    return times and replace(times, own_s=cpu_seconds(trainer))
