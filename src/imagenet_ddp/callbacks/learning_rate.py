"""Set the learning rate of each step."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as L


class LearningRate(L.Callback):
    """Set the learning rate of each optimizer group before each step, to its initial rate times the schedule's factor.
    Must be the first callback, because LearningRateMonitor reads the rate in the same hooks.

    schedule: maps the number of epochs passed (fractional within an epoch) to a factor.
    """

    def __init__(self, schedule: Callable[[float], float]):
        self._schedule = schedule
        self._peaks: list[float] = []

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Lightning restores the optimizer of a checkpoint, with the rates stored in it, only after this hook
        self._peaks = [group["lr"] for group in trainer.optimizers[0].param_groups]

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._set(trainer, trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # the rate is the same for all batches of an update, so it does not depend on how the update is split
        first = batch_idx - batch_idx % trainer.accumulate_grad_batches
        self._set(trainer, trainer.current_epoch + first / trainer.num_training_batches)

    def _set(self, trainer: L.Trainer, epochs: float) -> None:
        factor = self._schedule(epochs)
        for group, peak in zip(trainer.optimizers[0].param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
