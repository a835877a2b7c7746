"""A callback that makes every training step longer."""

import time
from typing import Any

import lightning.pytorch as L


class Sleep(L.Callback):
    def __init__(self, seconds: float):
        self._seconds = seconds

    def on_train_batch_end(self, *args: Any, **named: Any) -> None:
        time.sleep(self._seconds)
