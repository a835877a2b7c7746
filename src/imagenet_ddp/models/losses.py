"""Make the training loss of the loss.* keys, one value per image, so that the mean over ranks is exact, and the weights
of the classes in it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from imagenet_ddp.config.schema.losses import LossConfig, NamedLoss, OwnLossConfig
from imagenet_ddp.config.section import make
from imagenet_ddp.config.validators import is_mapping
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, must_be, setting
from imagenet_ddp.system.text import class_list, first_line


def make_loss(loss: LossConfig, classes: Sequence[str], num_train_images: Sequence[int]) -> "Loss | OwnLoss":
    """Return the training loss. classes: their names. num_train_images: of each class. Raises ConfigError if the keys
    do not fit the classes, or if the user's own loss cannot be called."""
    if isinstance(loss, NamedLoss):
        loss = replace(loss, class_weights=weights_by_class(loss.class_weights, classes))
        return Loss(loss, len(classes), num_train_images)
    return OwnLoss(cast("OwnLossConfig", loss), len(classes))


class Loss(nn.Module):
    """The training loss of each image, or the mean over the images.

    Weights of classes multiply the term of each class, as in torch's cross_entropy, so that a mixed image weighs its
    classes by their own weights; bce weights the positive terms (pos_weight).

    num_train_images: number of training images of each class, for
    loss.class_weights=balanced; None if unknown. Raises ConfigError if loss.class_weights does not hold one number per
    class.
    """

    def __init__(self, loss: NamedLoss, num_classes: int, num_train_images: Sequence[int] | None = None):
        super().__init__()
        self._loss = loss
        # not a buffer, which trainer.precision=bf16-true and 16-true would round
        self.weights = _class_weights(loss.class_weights, num_classes, num_train_images)

    def forward(
        self, logits: Tensor, target: Tensor, soft_target: Tensor | None = None, reduction: str = "none"
    ) -> Tensor:
        """Return the loss of each image, float (B,), or their mean, a scalar, if reduction is "mean". logits: float (B,
        C). target: int64 (B,). soft_target: float (B, C), the shares of the classes in each mixed image; if given, it
        replaces target."""
        labels = target if soft_target is None else soft_target
        losses = self._loss.of_images(logits, labels, self._weights_as(logits), reduction)
        return losses.mean() if reduction == "mean" else losses

    def _weights_as(self, logits: Tensor) -> Tensor | None:
        if self.weights is not None:
            self.weights = self.weights.to(logits.device, logits.dtype)  # copied in the first step only
        return self.weights


class OwnLoss(nn.Module):
    """A training loss of the user's own. Raises ConfigError unless it gives one number per image."""

    def __init__(self, loss: OwnLossConfig, num_classes: int):
        super().__init__()
        self._loss = make("loss._target_", str(loss.target), loss.args)
        try:
            shape = tuple(self._loss(torch.zeros(2, num_classes), torch.zeros(2, dtype=torch.int64)).shape)
            found = "" if shape == (2,) else f"got shape {shape} for a batch of 2"
        except Exception as error:
            found = f"but the call failed: {first_line(error)}"
        if found:
            raise ConfigError(
                f"loss._target_={loss.target} must return the loss of each image, float (B,), for logits (B, C) and "
                f"labels (B,), {found}. Hint: losses of torch.nn do with +loss.args.reduction=none."
            )

    def forward(
        self, logits: Tensor, target: Tensor, soft_target: Tensor | None = None, reduction: str = "none"
    ) -> Tensor:
        """Return what Loss.forward does."""
        if isinstance(self._loss, nn.Module):
            self._loss.to(logits.device)  # of its buffers; nothing is copied after the first step
        losses = self._loss(logits, target if soft_target is None else soft_target)
        return losses.mean() if reduction == "mean" else losses


def weights_by_class(option: Any, classes: Sequence[str]) -> Any:
    """Return loss.class_weights with the weights that are given by name as a list in the order of the classes, which is
    that of text: 0, 1, 10, 2. A class without a name has the weight 1. Raises ConfigError for an unknown name."""
    if not is_mapping(option):
        return option
    weights = {str(name): float(weight) for name, weight in option.items()}  # YAML reads 2 as a number
    if unknown := sorted(weights.keys() - set(classes)):
        key, others = "loss.class_weights", f"{class_list(unknown)} {'is' if len(unknown) == 1 else 'are'}"
        what = f"{key} must name classes of the data ({class_list(classes)}), but {others} not among them"
        raise ConfigError(Mistake(what, (key,), (setting(f"{key}={{{classes[0]}:{weights[unknown[0]]:g}}}"),)))
    return [weights.get(name, 1.0) for name in classes]


def _class_weights(option: Any, num_classes: int, num_train_images: Sequence[int] | None) -> Tensor | None:
    """Return the weight of each class, float32 (num_classes,), or None if all weights are 1. "balanced" stands for
    images / (classes × images of the class), whose mean over the training images is 1; a class without images gets
    0."""
    if option is None:
        return None
    if option == "balanced":
        if num_train_images is None:
            return None  # an evaluation has no training images, so its loss has no weights
        counts = torch.as_tensor(num_train_images, dtype=torch.float64)
        return torch.where(counts > 0, counts.sum() / (num_classes * counts.clamp(min=1)), 0.0).float()
    if len(option) != num_classes:
        key, hint = "loss.class_weights", "name the classes, as in loss.class_weights={cat:3,dog:1}"
        allowed = f"one number for each of {num_classes} classes"
        raise ConfigError(must_be(key, allowed, str(len(option)), setting(f"{key}=balanced"), hint=hint))
    return torch.tensor([float(weight) for weight in option])
