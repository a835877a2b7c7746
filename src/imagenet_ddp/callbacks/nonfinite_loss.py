"""End a training run whose loss is not finite before its state is saved, or skip updates with non-finite gradients."""

import math
import time
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor
from torch.nn.utils import get_total_norm

from imagenet_ddp.callbacks.loop_state import is_update, log_interval
from imagenet_ddp.errors import RunError
from imagenet_ddp.runs.folder import disk_errors_as_run_error
from imagenet_ddp.system.files import atomic_write, csv_bytes

FILE = "nonfinite_batch.csv"
MAX_KEPT = 1000  # steps whose losses are kept until the next check
MAX_SKIPPED = 20  # most updates skipped in a row
# Only the message of the first rank that fails is shown. A rank whose own loss is not finite has the better message.
PAUSE_S = 1.0
LOWER = (
    "set a lower optim.lr, set trainer.gradient_clip_val=1, or skip such updates with "
    "callbacks.nonfinite_loss.on_nan=skip"
)


class NonFiniteLoss(L.Callback):
    """Check the losses of all steps every trainer.log_every_n_steps optimizer steps. Before each checkpoint, check the
    losses and the weights, so that no checkpoint contains non-finite weights. Other steps do not wait for the device.

    on_nan=raise: raise RunError for the first step whose loss is not finite, and list the images of its batch in
    nonfinite_batch.csv in run_dir. on_nan=skip: skip each update whose gradients are not finite, which requires waiting
    for the device in every step. With trainer.precision=16-mixed, torch's GradScaler skips such updates in any case,
    but keeps the changes that their forward passes made to batch norm's statistics. on_nan=skip undoes them as well.

    Requires the batches of ImageDataModule and the outputs of ImageClassifier.
    """

    def __init__(self, on_nan: str = "raise", run_dir: str | Path | None = None) -> None:
        self.on_nan = on_nan
        self.run_dir = None if run_dir is None else Path(run_dir)
        self._recent: list[tuple[int, int, Tensor, Tensor]] = []  # unchecked steps
        self._buffers: list[Tensor] = []  # copy made after the last update, for on_nan=skip
        self._num_skipped = 0  # updates skipped in a row

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.on_nan == "raise":
            step, every = trainer.global_step, log_interval(trainer)
            self._recent.append((step, trainer.current_epoch, outputs["loss_sum"], batch["index"]))
            if (step % every == 0 and is_update(trainer)) or len(self._recent) == MAX_KEPT:
                self._look(trainer)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._look(trainer)
        # all ranks have the same weights, including ranks whose own losses were finite
        weights = [parameter.detach() for parameter in pl_module.parameters() if parameter.is_floating_point()]
        if self.on_nan == "raise" and not bool(get_total_norm(weights, math.inf).isfinite()):
            time.sleep(PAUSE_S)
            raise RunError(
                f"weights must be finite, but are not after step {trainer.global_step}, because a gradient or another "
                f"rank's loss was not finite. No checkpoint contains them. Hint: {LOWER}."
            )

    def _look(self, trainer: L.Trainer) -> None:
        recent, self._recent = self._recent, []
        if not recent:
            return
        losses = torch.stack([loss for _, _, loss, _ in recent]).tolist()
        for loss, (step, epoch, _, index) in zip(losses, recent, strict=True):
            if not math.isfinite(loss):
                self._end(trainer, loss, step, epoch, index)

    def _end(self, trainer: L.Trainer, loss: float, step: int, epoch: int, index: Tensor) -> None:
        listed = ""
        images = getattr(trainer.datamodule, "train_images", None)  # type: ignore[attr-defined]
        if self.run_dir is not None and images is not None:
            path, numbers = self.run_dir / FILE, index.tolist()
            with disk_errors_as_run_error(path):
                rows = [(str(number), images.path(number), str(images.targets[number])) for number in numbers]
                atomic_write(path, csv_bytes(("index", "path", "class"), rows))
            listed = f" {path} lists the images of this batch."
        lr = trainer.optimizers[0].param_groups[0]["lr"]
        raise RunError(
            f"the loss must be finite, but is {loss} in step {step} (epoch {epoch + 1}, rank {trainer.global_rank}), "
            f"at a learning rate of {lr:.3g}.{listed} No checkpoint contains the weights of this step. Hint: {LOWER}."
        )

    # -- skip

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        plugin = trainer.precision_plugin
        if self.on_nan == "skip" and isinstance(plugin, MixedPrecision) and plugin.scaler is not None:
            self.on_nan = "scaler"
        if self.on_nan != "raise":
            self._buffers = [buffer.clone() for buffer in pl_module.buffers()]

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if self.on_nan == "raise":
            return
        gradients = [parameter.grad for parameter in pl_module.parameters() if parameter.grad is not None]
        # the gradients are already summed over all ranks, so all ranks get the same answer
        if bool(get_total_norm(gradients).isfinite()):
            self._num_skipped = 0
            for kept, buffer in zip(self._buffers, pl_module.buffers(), strict=True):
                kept.copy_(buffer)
            return
        for kept, buffer in zip(self._buffers, pl_module.buffers(), strict=True):
            buffer.copy_(kept)  # the same forward pass updated batch norm's statistics
        if self.on_nan == "scaler":
            return
        optimizer.zero_grad(set_to_none=True)  # torch's optimizers skip parameters without a gradient
        self._num_skipped += 1
        step = trainer.global_step + 1
        if self._num_skipped > MAX_SKIPPED:
            raise RunError(
                f"gradients must be finite, but those of {self._num_skipped} updates in a row were not, up to step "
                f"{step}. Hint: set a lower optim.lr, or set trainer.gradient_clip_val=1."
            )
        if trainer.is_global_zero:
            warnings.warn(
                f"Step {step} is skipped because its gradients are not finite (callbacks.nonfinite_loss.on_nan=skip).",
                stacklevel=2,
            )
