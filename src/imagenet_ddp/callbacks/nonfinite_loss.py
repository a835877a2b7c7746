"""End a training run whose loss, weights or buffers are not finite before its state is saved."""

import math
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from imagenet_ddp.callbacks.loop_state import is_update, log_interval, validates_start
from imagenet_ddp.errors import RunError

MAX_KEPT = 1000  # steps whose losses are kept until the next check
LOWER = "set a lower optim.lr, or set trainer.gradient_clip_val=1"


class NonFiniteLoss(L.Callback):
    """Check the losses of all steps every trainer.log_every_n_steps optimizer steps. Check the loss of each validation.
    Before each checkpoint and at the end of the training, check the losses, the weights and the buffers, so that no
    checkpoint contains non-finite ones. Other steps do not wait for the device.

    Raises RunError for the first step whose loss is not finite. Requires the outputs of ImageClassifier.
    """

    def __init__(self) -> None:
        self._recent: list[tuple[int, int, Tensor]] = []  # step, epoch and loss of the unchecked steps

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step, every = trainer.global_step, log_interval(trainer)
        self._recent.append((step, trainer.current_epoch, outputs["sums"].totals["loss"]))
        if (step % every == 0 and is_update(trainer)) or len(self._recent) == MAX_KEPT:
            self._look(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking and not validates_start(trainer):
            return
        loss = trainer.callback_metrics.get("val/loss")
        if loss is not None and not math.isfinite(loss):
            raise RunError(
                f"val/loss must be finite, but is {float(loss)} after step {trainer.global_step}. No checkpoint "
                f"contains the weights of this step. Hint: {LOWER}."
            )

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._require_finite(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._require_finite(trainer, pl_module)  # also if nothing was saved

    def _require_finite(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._look(trainer)
        # all ranks have the same weights, including ranks whose own losses were finite
        weights, buffers = ([each.detach() for each in tensors if each.is_floating_point()]
                            for tensors in (pl_module.parameters(), pl_module.buffers()))  # fmt: skip
        what = ""
        if not bool(get_total_norm(weights, math.inf).isfinite()):
            what = "weights must be finite, but are not"
        elif bool(get_total_norm(buffers, math.inf).isnan()):  # a mask may contain -inf
            what = "buffers (batch norm's statistics) must not be NaN, but are"
        if what:
            raise RunError(
                f"{what} after step {trainer.global_step}, because an activation, a gradient or another rank's loss "
                f"was not finite. No checkpoint contains them. Hint: {LOWER}."
            )

    def _look(self, trainer: L.Trainer) -> None:
        recent, self._recent = self._recent, []
        if not recent:
            return
        losses: list[float] = torch.stack([loss for _, _, loss in recent]).tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        for loss, (step, epoch, _) in zip(losses, recent, strict=True):
            if not math.isfinite(loss):
                lr = trainer.optimizers[0].param_groups[0]["lr"]
                raise RunError(
                    f"the loss must be finite, but is {loss} in step {step} (epoch {epoch + 1}, rank "
                    f"{trainer.global_rank}), at a learning rate of {lr:.3g}. No checkpoint contains the weights of "
                    f"this step. Hint: {LOWER}."
                )
