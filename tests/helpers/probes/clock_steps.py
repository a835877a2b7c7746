"""Provide a callback that changes this process's clock; allow_targets=[clock_steps] permits it."""

import time
from typing import Any

import lightning.pytorch as L

DAYS = {4: 1, 12: -1}  # number of the step -> days that the clock is ahead of the real time from then on


class ClockSteps(L.Callback):
    def __init__(self) -> None:
        self._steps = 0
        self._time, self._time_ns = time.time, time.time_ns

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self._steps += 1
        if days := DAYS.get(self._steps):
            time.time = lambda: self._time() + 86_400 * days
            time.time_ns = lambda: self._time_ns() + 86_400 * 10**9 * days
