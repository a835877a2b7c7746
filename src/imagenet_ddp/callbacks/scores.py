"""Track validation scores: those of the current epoch, and the best one so far."""

import math
from typing import Any

import lightning.pytorch as L


class BestScore:
    """The best score of a metric so far.

    monitor: name of the metric. mode: "min" or "max". value: the best score; None before the first validation. epoch:
    the epoch, counted from 1, in which it was reached; 0 before the first validation. step: the number of optimizer
    steps after which it was reached; None if a callback that does not store it was resumed.
    """

    def __init__(self, monitor: str, mode: str):
        if mode not in ("min", "max"):
            raise ValueError(f"mode must be min or max, got {mode!r}")
        self.monitor = monitor
        self._sign = 1 if mode == "max" else -1
        self.value: float | None = None
        self.epoch = 0
        self.step: int | None = None

    def update(self, trainer: L.Trainer) -> bool:
        """Read the score of the validation that has just ended, and return whether it is the best so far."""
        if self.monitor not in trainer.callback_metrics:
            return False
        value = float(trainer.callback_metrics[self.monitor])
        if math.isnan(value) or (self.value is not None and self._sign * value <= self._sign * self.value):
            return False
        self.value, self.epoch, self.step = value, trainer.current_epoch + 1, trainer.global_step
        return True

    def restore(self, monitor: str, value: float | None, epoch: int, step: int | None = None) -> bool:
        """Restore the best score from a checkpoint. Return False without restoring it if it is a score of another
        metric, which cannot be compared."""
        if monitor != self.monitor:
            return False
        self.value, self.epoch, self.step = value, epoch, step
        return True


class ScoreCallback(L.Callback):
    """Base class of callbacks that report on epochs.

    scores: val/... metrics of the last validation in this epoch; empty before it. best: best score of all validations.
    """

    def __init__(self, monitor: str = "val/top1", mode: str = "max"):
        self.scores: dict[str, float] = {}
        self.best = BestScore(monitor, mode)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.scores = {}

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.best.update(trainer)
            metrics = trainer.callback_metrics
            self.scores = {name: float(value) for name, value in metrics.items() if name.startswith("val/")}

    def state_dict(self) -> dict[str, Any]:
        best = self.best
        return {"scores": dict(self.scores), "best": best.value, "best_epoch": best.epoch, "monitor": best.monitor}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.scores = state_dict["scores"]
        self.best.restore(state_dict["monitor"], state_dict["best"], state_dict["best_epoch"])
