"""Keep a running average of the weights, which is validated and stored instead of the weights themselves."""

from collections import defaultdict
from functools import partial
from itertools import chain
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from imagenet_ddp.callbacks.loop_state import is_epoch_over
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import must_be, setting


class WeightAverage(WeightAveraging):
    """Average the weights and the buffers (batch norm's statistics), either exponentially (ema) or equally over the
    ends of epochs (swa).

    decay: weight of the old average in each update; None means an equal average over the ends of epochs. every_n_steps:
    optimizer steps between two updates of an exponential average. warmup: use at most (1 + n) / (10 + n) as the decay
    of update n, because a constant decay of 0.9998 keeps the initial weights for tens of thousands of updates.
    start_epoch: the first epoch, counted from 0, that is averaged. Before it there is no average, and the weights
    themselves are validated and stored.

    A checkpoint contains the average as `state_dict`, which evaluation and prediction load, and the weights from which
    training continues as `current_model_state`.
    """

    def __init__(self, decay: float | None = 0.9998, every_n_steps: int = 1, start_epoch: int = 0, warmup: bool = True):
        average = _equal_average if decay is None else get_ema_multi_avg_fn(decay)  # pyright: ignore[reportUnknownVariableType]
        super().__init__(multi_avg_fn=partial(_warming_up, decay) if decay is not None and warmup else average)
        self.decay, self.every_n_steps, self.start_epoch = decay, every_n_steps, start_epoch
        self._epoch, self._is_epoch_over = 0, False

    @property
    def has_average(self) -> bool:
        """Return whether the average has been updated at least once."""
        return self._average_model is not None and bool(self._average_model.n_averaged)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if self._average_model is not None:
            self._average_model.n_averaged = torch.zeros((), dtype=torch.long)
            self._average_model.update_parameters = partial(_update, self._average_model)  # type: ignore[assignment]

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Lightning copies the module in setup(), before it moves the module to its device and type
        if self._average_model is not None:
            self._average_model.module.to(device=pl_module.device, dtype=pl_module.dtype)  # type: ignore[call-overload]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._epoch = trainer.current_epoch  # on_train_epoch_start is skipped after a resume within an epoch
        # an equal average begins with the last step of its first epoch
        steps = -(-trainer.num_training_batches // trainer.accumulate_grad_batches)
        needed = (self.start_epoch + 1) * steps if self.decay is None else self.start_epoch * steps + 1
        if 0 <= trainer.max_steps < needed:
            allowed = f"at least {needed} for averaging to begin in epoch {self.start_epoch + 1}"
            ways = setting(f"trainer.max_steps={needed}"), setting("averaging=none")
            raise ConfigError(must_be("trainer.max_steps", allowed, str(trainer.max_steps), *ways))
        self._latest_update_step = trainer.global_step
        if self._average_model is not None and self._epoch < self.start_epoch:  # a resume with a later start
            self._average_model.n_averaged.zero_()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._epoch = trainer.current_epoch

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._is_epoch_over = is_epoch_over(trainer)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        # Lightning stores only the steps that were averaged, so the first batch of start_epoch, before its
        # accumulated step, would look like a new step
        self._latest_update_step = trainer.global_step

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Return whether to average after this optimizer step. An equal average updates at an epoch's last step rather
        than at its end, because the validation in between must see the average that is stored."""
        if step_idx is None or self._epoch < self.start_epoch:
            return False
        return self._is_epoch_over if self.decay is None else (step_idx + 1) % self.every_n_steps == 0

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._is_swapped = self.has_average
        if self._is_swapped:
            super().on_validation_epoch_start(trainer, pl_module)
            trainer.strategy.on_validation_start()  # again, to broadcast rank 0's buffers, now those of the average

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._is_swapped:
            super().on_validation_epoch_end(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.has_average:
            super().on_train_end(trainer, pl_module)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._average_model is not None and self.has_average:
            super().on_save_checkpoint(trainer, pl_module, checkpoint)
            # with the version of each layer's format, without which MNASNet refuses its weights
            checkpoint["state_dict"] = self._average_model.module.state_dict()

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        # without a stored average, averaging begins with the first update, as in a new run
        if self._average_model is not None and "averaging_state" in checkpoint:
            self._average_model.module.load_state_dict(checkpoint["state_dict"])
            self._average_model.n_averaged.copy_(checkpoint["averaging_state"]["n_averaged"])
            pl_module.load_state_dict(checkpoint["current_model_state"])


@torch.no_grad()
def _update(average: AveragedModel, model: nn.Module) -> None:
    """Do the work of AveragedModel.update_parameters, but without its two waits for the GPU, when it reads its counter
    and copies the counter to the device."""
    kept = chain(average.module.parameters(), average.module.buffers())
    new = chain(model.parameters(), model.buffers())
    count = int(average.n_averaged)
    by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
    for old, current in zip(kept, new, strict=True):
        by_type[old.dtype][0].append(old)
        by_type[old.dtype][1].append(current)
    for olds, currents in by_type.values():
        if count:
            average.multi_avg_fn(olds, currents, count)  # type: ignore[misc, arg-type]
        else:
            for old, current in zip(olds, currents, strict=True):
                old.copy_(current)
    average.n_averaged += 1


def warmup_decay(num_updates: int) -> float:
    """Return the highest decay after this many updates. It grows with them, as in TensorFlow's average, so that the
    average spans about a tenth of the updates so far."""
    return (1 + num_updates) / (10 + num_updates)


def _warming_up(decay: float, averages: list[Tensor], current: list[Tensor], num_averaged: Tensor | int) -> None:
    get_ema_multi_avg_fn(min(decay, warmup_decay(int(num_averaged))))(averages, current, num_averaged)


def _equal_average(averages: list[Tensor], current: list[Tensor], num_averaged: Tensor | int) -> None:
    """Add one more model to an equal average. torch's get_swa_multi_avg_fn fails for batch norm's integer counter."""
    for average, value in zip(averages, current, strict=True):
        if average.is_floating_point():
            average.lerp_(value, 1 / (int(num_averaged) + 1))
        else:
            average.copy_(value)
