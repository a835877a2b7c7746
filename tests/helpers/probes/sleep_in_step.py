"""Provide a callback that prolongs every training step."""

import time
from typing import Any

import lightning.pytorch as L


class Sleep(L.Callback):
    def __init__(self, seconds: float):
        self._seconds = seconds

    def on_train_batch_end(self, *args: Any, **named: Any) -> None:
        time.sleep(self._seconds)
