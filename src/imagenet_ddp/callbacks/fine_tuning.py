"""Fine-tune: train only the last layer, for the first epochs or throughout, keep batch norm's statistics, and start the
last layer from a logistic regression on the features that the loaded weights give."""

import math
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

import lightning.pytorch as L
import torch
from torch import Tensor, distributed, nn

from imagenet_ddp.callbacks.train_log import find_log
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.models.head import compute_features, evaluating, is_in_head
from imagenet_ddp.models.regression import Regression, fit_regression
from imagenet_ddp.runs.signals import SignalExit, raise_on_signal
from imagenet_ddp.system.console import Progress
from imagenet_ddp.system.text import count_noun, duration, percent

MAX_IMAGES = 20_000  # over all ranks, drawn at random if there are more; 2,048 features of each are 160 MB
FIT = 0.25  # time of the regression, as a share of that of the features


class FrozenLayers(L.Callback):
    """Freeze all layers except the heads until a given epoch, and batch norm's statistics for the whole training.
    Frozen layers get no gradients. Frozen statistics are used and not updated; their layer's weight and bias still
    learn, unless the layer is frozen, too.

    heads: names of the layers of `pl_module.net` that are trained; None freezes no layer. unfreeze_epoch: the first
    epoch, counted from 0, in which all layers are trained; None freezes them for the whole training. batch_norm:
    freeze the statistics of all layers, not only of frozen ones. The optimizer holds all parameters from the start
    and skips those without a gradient, so the optimizer state of a frozen parameter begins with its first update.
    """

    def __init__(self, heads: tuple[str, ...] | None, unfreeze_epoch: int | None = None, *, batch_norm: bool = False):
        self.heads, self.unfreeze_epoch, self.batch_norm = heads, unfreeze_epoch, batch_norm

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.on_train_epoch_start(trainer, pl_module)  # Lightning skips that hook after a resume within an epoch

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        net: nn.Module = pl_module.net  # type: ignore[assignment]
        heads = self.heads or ()
        frozen = self.heads is not None and (self.unfreeze_epoch is None or trainer.current_epoch < self.unfreeze_epoch)
        if self.heads is not None:
            for name, parameter in net.named_parameters():
                if not is_in_head(name, heads):
                    parameter.requires_grad_(not frozen)
        # Lightning restores the mode of each layer after a validation
        modules = cast("Iterable[tuple[str, nn.Module]]", net.named_modules())
        for name, module in modules:
            if has_statistics(module) and (self.batch_norm or not is_in_head(f"{name}.", heads)):
                module.train(not (frozen or self.batch_norm))


def has_statistics(module: nn.Module) -> bool:
    """Return whether a layer keeps running statistics, as batch norm does, in any of its variants."""
    return getattr(module, "running_var", None) is not None


class RegressionHead(L.Callback):
    """Before the first step, fit a logistic regression to the features of the training images, without augmentation,
    and start the last layer with its weights. The net with this layer is validated as epoch 0, so best.ckpt is never
    worse than the regression. Leave this callback out on resume.

    head: name of the layer in `pl_module.net`. seed: chooses the held-out images. say: writes a line to the log.
    until_s: the time.monotonic() by which this validation should end. Images are read as long as the rate so far leaves
    time for the regression and the validation.
    """

    def __init__(self, head: str, seed: int, say: Callable[[str], None], until_s: float = math.inf):
        self.head, self._seed, self._say, self._until_s = head, seed, say, until_s

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        trainer.num_sanity_val_steps = math.inf  # type: ignore[attr-defined]
        find_log(trainer).start = "regression on frozen features"

    def on_fit_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        begin_s = time.monotonic()
        data: ImageDataModule = cast("Any", trainer).datamodule
        num_images = min(len(data.train_images), MAX_IMAGES)
        self._say(f"Computing the features of {count_noun(num_images, 'training image')} for the last layer.")
        try:
            with raise_on_signal(), evaluating(pl_module.net):  # nothing is trained yet that could be saved
                regression, num_read = self._fit(trainer, pl_module, data)
        except SignalExit as left:
            self._say(str(left))
            raise
        head = pl_module.net.get_submodule(self.head)
        with torch.no_grad():
            head.weight.copy_(regression.weight)
            head.bias.copy_(regression.bias)
        these = "these features" if num_read >= num_images else f"the features of {num_read}, all that the time allows"
        self._say(
            f"The last layer starts from logistic regression on {these}, which is right for "
            f"{percent(regression.accuracy)} of {count_noun(regression.num_held_out, 'held-out image')} "
            f"({duration(time.monotonic() - begin_s)})."
        )

    def _fit(self, trainer: L.Trainer, pl_module: Any, data: ImageDataModule) -> tuple[Regression, int]:
        """Return (the regression, the number of images that it is fitted to), the same on all ranks."""
        mine = self._compute(pl_module, data)
        ranks: list[Any] | None = [mine]
        if trainer.world_size > 1:
            ranks = [None] * trainer.world_size if trainer.is_global_zero else None
            distributed.gather_object(mine, ranks)
        found = None
        if ranks is not None:  # rank 0
            index, features, targets = (torch.cat(column) for column in zip(*ranks, strict=True))
            order = index.argsort()  # the same on any number of ranks
            features, targets = (each[order].to(pl_module.device) for each in (features, targets))
            classes = pl_module.net.get_submodule(self.head).out_features
            found = fit_regression(features, targets, classes, self._seed), len(features)
        return trainer.strategy.broadcast(found)  # type: ignore[return-value]

    def _compute(self, pl_module: Any, data: ImageDataModule) -> tuple[Tensor, Tensor, Tensor]:
        """Return this rank's (index, features, targets) on the CPU: int64 (N,), float32 (N, features), int64 (N,)."""
        columns: list[tuple[Tensor, ...]] = []
        progress = Progress("features", min(len(data.train_images), MAX_IMAGES), "images")
        loader, num_done, num_first, first_s = data.plain_train_dataloader(), 0, 0, 0.0
        for batch in loader:
            counted = batch["num_counted"]
            batch = data.finish(data.transfer_batch_to_device(batch, pl_module.device, 0), training=False)
            features = compute_features(pl_module.net, self.head, batch["image"].to(pl_module.dtype))[0]
            rows = batch["index"], features.float(), batch["target"]
            columns.append(tuple(each[:counted].cpu() for each in rows))
            num_done += batch["step_images"]
            if pl_module.trainer.is_global_zero:
                progress.add(batch["step_images"])
            now_s, num_next = time.monotonic(), batch["step_images"]
            if not num_first:  # the first batch is slower, so it says nothing about the others
                num_first, first_s = num_done, now_s
            # the next batch and all validation images pass through the net, too
            num_left = num_next + len(data.val_images) + FIT * (num_done + num_next)
            rest_s = (now_s - first_s) / max(num_done - num_first, 1) * num_left
            is_over = num_done >= MAX_IMAGES or now_s + rest_s > self._until_s
            if pl_module.trainer.strategy.broadcast(is_over):  # at the same step on all ranks
                break
        loader.close()
        if pl_module.trainer.is_global_zero:
            progress.close()
        index, features, targets = (torch.cat(column) for column in zip(*columns, strict=True))
        return index, features, targets
