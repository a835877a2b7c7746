"""Provide a callback that fails in every attempt."""

from lightning.pytorch import Callback


class AlwaysFails(Callback):
    def on_train_start(self, *_: object) -> None:
        raise ValueError("always")
