"""The training's figures under their names, for Lightning's loggers and for callbacks that monitor one of them."""

from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor

from imagenet_ddp.callbacks.running_metrics import Figures, RunningMetrics


class LogMetrics(L.Callback):
    """Log train/loss, train/top1, train/top5, lr, images_per_s and data_wait_frac. Comes after Meters and before
    callbacks that read trainer.callback_metrics.

    At every trainer.log_every_n_steps-th step of the optimizer: what lies between it and the last such step, means over
    this rank's images. No other step waits for the device, and no step for another rank. At the end of an epoch, and
    before a validation, callback_metrics has the means over all ranks' images of the epoch so far, so that a decision
    on them is the same on all ranks; loggers get those of the epoch as train/loss_epoch, train/top1_epoch and
    train/top5_epoch.
    """

    def __init__(self, meters: RunningMetrics, every_n_steps: int):
        self._meters, self._every_n_steps = meters, every_n_steps
        self._steps = 0  # of the optimizer, after the last batch

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._steps = trainer.global_step

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # Loggers, and Lightning's callbacks that write to them, count steps by this; after a resume in mid-epoch it
        # lags one behind. Private: the version is bounded, a test watches.
        trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        before, self._steps = self._steps, trainer.global_step
        accumulates = self._steps == before
        # Lightning's loggers take what was logged in these very steps
        if accumulates or (self._steps % self._every_n_steps and not trainer.should_stop):
            return
        figures, images_per_s, data_wait_frac = self._meters.take()
        lr = float(trainer.optimizers[0].param_groups[0]["lr"])
        pl_module.log_dict(_named(figures), on_step=True, on_epoch=False, prog_bar=True)
        rest = {"lr": lr, "images_per_s": images_per_s, "data_wait_frac": data_wait_frac}
        pl_module.log_dict(_on_cpu(rest), on_step=True, on_epoch=False)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            trainer.callback_metrics.update(_named(self._meters.total(trainer)))

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        figures = self._meters.epoch_figures
        assert figures is not None
        pl_module.log_dict(_named(figures), prog_bar=True, logger=False)
        pl_module.log_dict(_named(figures, "_epoch"))


def _named(figures: Figures, suffix: str = "") -> dict[str, Tensor]:
    values = {"loss": figures.loss, "top1": figures.top1, "top5": figures.top5}
    return _on_cpu({f"train/{name}{suffix}": value for name, value in values.items()})


def _on_cpu(values: dict[str, float]) -> dict[str, Tensor]:
    """Lightning would put plain numbers on the device, and progress bars would wait for it in every step."""
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
