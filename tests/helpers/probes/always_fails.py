"""Provide a callback that fails in every attempt."""

from typing import Any

from lightning.pytorch import Callback


class AlwaysFails(Callback):
    def on_train_start(self, *args: Any, **named: Any) -> None:
        raise ValueError("always")
