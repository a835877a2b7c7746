"""Make the loss described by the loss.* keys: one value per image, so that a mean over ranks is exact."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imagenet_ddp.errors import ConfigError


class Loss(nn.Module):
    """The training loss of each image, or its mean.

    loss: the resolved loss.* keys. num_train_images: of each class, for loss.class_weights=balanced; None: not known.
    Raises ConfigError if the weights do not fit the classes.
    """

    def __init__(self, loss: Mapping[str, Any], num_classes: int, num_train_images: Sequence[int] | None = None):
        super().__init__()
        self._name, self._smoothing = loss["name"], loss["label_smoothing"]
        self._gamma, self._threshold = loss["focal_gamma"], loss["bce_threshold"]
        self._num_classes = num_classes
        self.weights: Tensor | None
        weights = _class_weights(loss["class_weights"], num_classes, num_train_images)
        self.register_buffer("weights", weights, persistent=False)

    def forward(
        self, logits: Tensor, target: Tensor, soft_target: Tensor | None = None, reduction: str = "none"
    ) -> Tensor:
        """Compute the loss of each image, float (B,), or with reduction "mean" their mean, a scalar. logits: float
        (B, C). target: int64 (B,). soft_target: float (B, C), shares of the classes in a mixed image, which then take
        the target's place."""
        if self._name == "cross_entropy" and self.weights is None:
            labels = target if soft_target is None else soft_target
            return F.cross_entropy(logits, labels, label_smoothing=self._smoothing, reduction=reduction)
        losses = self._of_each(logits, target, soft_target)
        return losses.mean() if reduction == "mean" else losses

    def _of_each(self, logits: Tensor, target: Tensor, soft_target: Tensor | None) -> Tensor:
        shares = soft_target
        if shares is None:  # not F.one_hot, which reads the values
            shares = (target[:, None] == torch.arange(self._num_classes, device=target.device)).to(logits.dtype)
        labels = shares * (1 - self._smoothing) + self._smoothing / self._num_classes
        if self._name == "bce":
            if self._threshold is not None:
                labels = labels.gt(self._threshold).to(logits.dtype)
            losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)
        else:
            log_probabilities = logits.log_softmax(1)
            if self._name == "focal":
                # not below 1e-6: the power of 0 has no gradient for exponents below 1
                labels = labels * (1 - log_probabilities.exp()).clamp(min=1e-6) ** self._gamma
            losses = -(labels * log_probabilities).sum(1)
        return losses if self.weights is None else losses * (shares * self.weights).sum(1)


def _class_weights(option: Any, num_classes: int, num_train_images: Sequence[int] | None) -> Tensor | None:
    """Return float32 (num_classes,), or None if all are 1. balanced: images / (classes × images of the class), so that
    the mean over the training images is 1; a class without images gets 0."""
    if option is None:
        return None
    if option == "balanced":
        if num_train_images is None:
            return None  # a validation has no training images, and its loss no weights
        counts = torch.as_tensor(num_train_images, dtype=torch.float64)
        return torch.where(counts > 0, counts.sum() / (num_classes * counts.clamp(min=1)), 0.0).float()
    if len(option) != num_classes:
        raise ConfigError(
            f"loss.class_weights must be one number per class, {num_classes}, got {len(option)}. "
            "Hint: loss.class_weights=balanced, or a list in the order of the class names."
        )
    return torch.tensor([float(weight) for weight in option])
