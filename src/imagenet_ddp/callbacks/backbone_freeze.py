"""Train only the last layer, for the first epochs or for the whole training."""

import lightning.pytorch as L
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from imagenet_ddp.models.parameter_groups import is_in_head


class BackboneFreeze(L.Callback):
    """Freeze all layers except the head until a given epoch. Frozen layers get no gradients, and their batch norm uses
    its stored statistics.

    head: the name of the layer of `pl_module.net` that is trained. unfreeze_epoch: the first epoch, counted from 0, in
    which all layers are trained; None freezes them for the whole training. The optimizer holds all parameters from the
    start and skips those without a gradient, so the optimizer state of a frozen parameter begins with its first update.
    """

    def __init__(self, head: str, unfreeze_epoch: int | None = None):
        self.head, self.unfreeze_epoch = head, unfreeze_epoch

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.on_train_epoch_start(trainer, pl_module)  # Lightning skips that hook after a resume within an epoch

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        net: nn.Module = pl_module.net  # type: ignore[assignment]
        frozen = self.unfreeze_epoch is None or trainer.current_epoch < self.unfreeze_epoch
        for name, parameter in net.named_parameters():
            if not is_in_head(name, self.head):
                parameter.requires_grad_(not frozen)
        for name, module in net.named_modules():
            if isinstance(module, _BatchNorm) and not is_in_head(f"{name}.", self.head):
                module.train(not frozen)
