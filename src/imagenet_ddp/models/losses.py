"""Compute the loss that the loss.* keys describe, one value per image, so that the mean over ranks is exact."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imagenet_ddp.config.schema.learning import LossConfig
from imagenet_ddp.config.section import make
from imagenet_ddp.config.validators import is_mapping
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import first_line, shorten_list


class Loss(nn.Module):
    """The training loss of each image, or the mean over the images.

    Weights of classes multiply the term of each class, as in torch's cross_entropy, so that a mixed image weighs its
    classes by their own weights; bce weights the positive terms (pos_weight).

    num_train_images: number of training images of each class, for
    loss.class_weights=balanced; None if unknown. Raises ConfigError if loss.class_weights does not hold one number per
    class.
    """

    def __init__(self, loss: LossConfig, num_classes: int, num_train_images: Sequence[int] | None = None):
        super().__init__()
        self._name, self._smoothing = loss.name, loss.label_smoothing
        self._gamma, self._threshold = loss.focal_gamma, loss.bce_threshold
        self._num_classes = num_classes
        # not a buffer, which trainer.precision=bf16-true and 16-true would round
        self.weights = _class_weights(loss.class_weights, num_classes, num_train_images)

    def forward(
        self, logits: Tensor, target: Tensor, soft_target: Tensor | None = None, reduction: str = "none"
    ) -> Tensor:
        """Return the loss of each image, float (B,), or their mean, a scalar, if reduction is "mean". logits: float (B,
        C). target: int64 (B,). soft_target: float (B, C), the shares of the classes in each mixed image; if given, it
        replaces target."""
        if self._name == "cross_entropy":
            labels = target if soft_target is None else soft_target
            # torch's mean would divide by the sum of the weights, which differs between the ranks
            reduced = reduction if self.weights is None else "none"
            losses = F.cross_entropy(
                logits, labels, self._weights_as(logits), label_smoothing=self._smoothing, reduction=reduced
            )
        else:
            losses = self._of_each(logits, target, soft_target)
        return losses.mean() if reduction == "mean" else losses

    def _of_each(self, logits: Tensor, target: Tensor, soft_target: Tensor | None) -> Tensor:
        weights, shares = self._weights_as(logits), soft_target
        if shares is None:  # not with F.one_hot, which inspects the values
            shares = (target[:, None] == torch.arange(self._num_classes, device=target.device)).to(logits.dtype)
        labels = shares * (1 - self._smoothing) + self._smoothing / self._num_classes
        if self._name == "bce":
            if self._threshold is not None:
                labels = labels.gt(self._threshold).to(logits.dtype)
            return F.binary_cross_entropy_with_logits(logits, labels, reduction="none", pos_weight=weights).mean(1)
        log_probabilities = logits.log_softmax(1)
        # at least 1e-6, because a power of 0 has no gradient if the exponent is below 1
        labels = labels * (1 - log_probabilities.exp()).clamp(min=1e-6) ** self._gamma
        return -(labels * log_probabilities if weights is None else labels * weights * log_probabilities).sum(1)

    def _weights_as(self, logits: Tensor) -> Tensor | None:
        if self.weights is not None:
            self.weights = self.weights.to(logits.device, logits.dtype)  # copied in the first step only
        return self.weights


class OwnLoss(nn.Module):
    """A training loss of the user's own. Raises ConfigError unless it gives one number per image."""

    def __init__(self, loss: LossConfig, num_classes: int):
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
        raise ConfigError(
            f"loss.class_weights must name classes of the data ({shorten_list(classes)}), but {shorten_list(unknown)} "
            f"{'is' if len(unknown) == 1 else 'are'} not among them. Hint: set "
            f"loss.class_weights={{{classes[0]}:{weights[unknown[0]]:g}}}."
        )
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
        raise ConfigError(
            f"loss.class_weights must hold one number for each of {num_classes} classes, got {len(option)}. "
            "Hint: set loss.class_weights=balanced, or name the classes, as in loss.class_weights={cat:3,dog:1}."
        )
    return torch.tensor([float(weight) for weight in option])
