"""Fine-tune: train only the last layer, for the first epochs or throughout, and keep batch norm's statistics."""

from collections.abc import Iterable
from typing import cast

import lightning.pytorch as L
from torch import nn

from imagenet_ddp.models.head import is_in_head


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
