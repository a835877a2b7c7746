"""The LightningModule: a net, its loss, and top-1/top-5 as torchmetrics."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from imagenet_ddp.learning.metrics import ImagesCounted


class Classifier(L.LightningModule):
    """make_optimizer gets the parameters and gives the optimiser, its groups at their highest learning rate;
    schedule gives the factor on that rate after so many epochs.

    Nothing is logged per training step: that costs 2 ms and, with a progress bar, a wait for the device. The
    callbacks of run/ read what training_step returns. Validation logs val/loss, val/top1 and val/top5 once per epoch,
    exact over all ranks.
    """

    def __init__(
        self,
        net: nn.Module,
        num_classes: int,
        num_val_images: int,
        *,
        make_optimizer: Callable[[Any], torch.optim.Optimizer],
        schedule: Callable[[float], float],
        label_smoothing: float,
        seed: int,
    ):
        super().__init__()
        self.net = net
        self.top_k = min(5, num_classes)
        self._make_optimizer = make_optimizer
        self._schedule = schedule
        self._peak_lrs: list[float] = []
        self._label_smoothing = label_smoothing
        self._seed = seed
        # micro: every image weighs the same, as ImageNet's top-1 is; torchmetrics' default is the mean over classes
        self.top1 = MulticlassAccuracy(num_classes, top_k=1, average="micro", validate_args=False)
        self.top5 = MulticlassAccuracy(num_classes, top_k=self.top_k, average="micro", validate_args=False)
        self.val_loss = MeanMetric(nan_strategy="disable")
        self.counted = ImagesCounted(num_val_images)

    def forward(self, images: Tensor) -> Tensor:
        """float32 (B, 3, H, W), normalised -> logits (B, num_classes)."""
        # trainer.precision=64-true and bf16-true change the net's own type
        return self.call_net(images if images.dtype == self.dtype else images.to(self.dtype))

    def call_net(self, images: Tensor) -> Tensor:
        """A strategy that splits the batch within this process (dp) puts its replicas in this place."""
        return self.net(images)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = self._make_optimizer(self.net.parameters())
        self._peak_lrs = [group["lr"] for group in optimizer.param_groups]
        return optimizer

    def on_train_batch_start(self, batch: dict, batch_idx: int) -> None:
        epochs = self.current_epoch + batch_idx / self.trainer.num_training_batches
        factor = self._schedule(epochs)
        for group, peak in zip(self.trainer.optimizers[0].param_groups, self._peak_lrs, strict=True):
            group["lr"] = peak * factor
        # the step's own randomness (dropout) depends on the step alone, so that a resumed run draws the same
        parts = (self._seed, self.global_rank, self.trainer.fit_loop.epoch_loop.total_batch_idx)
        # hashed, because the CPU's generator takes only the lower 32 bits of a seed
        seed = int(np.random.SeedSequence(parts).generate_state(1, np.uint32)[0])
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        elif self.device.type == "mps":
            torch.mps.manual_seed(seed)

    def training_step(self, batch: dict, batch_idx: int) -> dict[str, Tensor]:
        """loss: mean over the images that count in this step on all ranks, once DDP has averaged it over the ranks."""
        logits, target = self(batch["image"]), batch["target"]
        counted, size = batch["num_counted"], len(target)
        if counted == size and batch["step_images"] == size * self.trainer.world_size:
            loss = F.cross_entropy(logits.float(), target, label_smoothing=self._label_smoothing)
            return {"loss": loss, "loss_sum": loss.detach() * size, "logits": logits}
        # a remainder: fewer images than usual, or not the same number on each rank
        losses = F.cross_entropy(logits.float(), target, label_smoothing=self._label_smoothing, reduction="none")
        weight = torch.zeros(size, device=losses.device)
        weight[:counted] = 1.0
        loss_sum = (losses * weight).sum()
        loss = loss_sum * (self.trainer.world_size / batch["step_images"])
        return {"loss": loss, "loss_sum": loss_sum.detach(), "logits": logits}

    def validation_step(self, batch: dict, batch_idx: int) -> None:
        counted = batch["num_counted"]
        if not counted:  # a rank without any image
            return
        logits = self(batch["image"])[:counted].float()
        target = batch["target"][:counted]
        self.top1.update(logits, target)
        self.top5.update(logits, target)
        self.val_loss.update(F.cross_entropy(logits, target, reduction="none"))
        self.counted.update(batch["index"][:counted])

    def on_validation_epoch_start(self) -> None:
        for metric in (self.top1, self.top5, self.val_loss, self.counted):
            metric.reset()

    def on_validation_epoch_end(self) -> None:
        # compute() sums over all ranks: a rank without images brings its zeros
        self.log_dict(
            {"val/loss": self.val_loss.compute(), "val/top1": self.top1.compute(), "val/top5": self.top5.compute()}
        )
