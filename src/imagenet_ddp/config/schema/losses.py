"""Declare the losses: the keys of loss.*, and the loss of each image that they describe. Imports torch only when one is
computed. A further one is a class here, named in LOSSES."""

from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any

from imagenet_ddp.config.section import OneOf, one_of
from imagenet_ddp.config.validators import NULL, Example, is_mapping, kind, list_of, number

if TYPE_CHECKING:
    from torch import Tensor

_WEIGHTS = kind(
    "balanced, numbers > 0 by class name, or a list of one per class",
    lambda value: (
        value == "balanced"
        or list_of(number(above=0), "").accepts(list(value.values()) if is_mapping(value) else value)
    ),
)


class LossConfig(OneOf):
    """The keys that each loss has."""

    name: Annotated[str, "Loss function; bce: binary cross entropy of each class."] = "cross_entropy"
    _target_: Annotated[str | None, Example("torch.nn.MultiMarginLoss"), "Class of your own loss."] = None


class OwnLossConfig(LossConfig):
    args: Annotated[dict[str, Any], "Arguments of your own loss."] = field(default_factory=dict[str, Any])


class NamedLoss(LossConfig):
    label_smoothing: Annotated[float, number(0, below=1), Example("0.1"), "Label smoothing."] = 0.0
    class_weights: Annotated[
        Any,
        _WEIGHTS | NULL,
        Example("balanced"),
        "Weight of each class: balanced (images / (classes × images of the class)), {cat:3} (others: 1), or a list in "
        "the order of the class names; null: all 1.",
    ] = None

    def of_images(
        self, logits: "Tensor", target: "Tensor", weights: "Tensor | None" = None, reduction: str = "none"
    ) -> "Tensor":
        """Return the loss of each image, float (B,); if reduction is "mean", it may be their mean, a scalar.

        logits: float (B, C). target: labels, int64 (B,), or shares of the classes in mixed images, float (B, C).
        weights: of the classes, float (C,).
        """
        raise NotImplementedError

    def smooth(self, logits: "Tensor", target: "Tensor") -> "Tensor":
        """Return the smoothed share of each class, float (B, C)."""
        import torch

        num_classes = logits.shape[1]
        if target.dim() == 1:  # not with F.one_hot, which inspects the values
            target = (target[:, None] == torch.arange(num_classes, device=target.device)).to(logits.dtype)
        return target * (1 - self.label_smoothing) + self.label_smoothing / num_classes


class CrossEntropy(NamedLoss):
    name: str = "cross_entropy"

    def of_images(
        self, logits: "Tensor", target: "Tensor", weights: "Tensor | None" = None, reduction: str = "none"
    ) -> "Tensor":
        from torch.nn.functional import cross_entropy

        if weights is not None:  # else torch's mean would divide by their sum, which differs between the ranks
            reduction = "none"
        return cross_entropy(logits, target, weights, label_smoothing=self.label_smoothing, reduction=reduction)


class Bce(NamedLoss):
    """Binary cross entropy, the mean over the classes; weights multiply the positive terms."""

    name: str = "bce"
    bce_threshold: Annotated[
        float | None, number(0, below=1), Example("0.2"), "mixed targets above this value become 1, others 0."
    ] = None

    def of_images(
        self, logits: "Tensor", target: "Tensor", weights: "Tensor | None" = None, reduction: str = "none"
    ) -> "Tensor":
        from torch.nn.functional import binary_cross_entropy_with_logits

        shares = self.smooth(logits, target)
        if self.bce_threshold is not None:
            shares = shares.gt(self.bce_threshold).to(logits.dtype)
        return binary_cross_entropy_with_logits(logits, shares, reduction="none", pos_weight=weights).mean(1)


class Focal(NamedLoss):
    name: str = "focal"
    focal_gamma: Annotated[float, number(0), "exponent that lowers the weight of easy images."] = 2.0

    def of_images(
        self, logits: "Tensor", target: "Tensor", weights: "Tensor | None" = None, reduction: str = "none"
    ) -> "Tensor":
        log_probabilities = logits.log_softmax(1)
        # at least 1e-6, because a power of 0 has no gradient if the exponent is below 1
        hard = (1 - log_probabilities.exp()).clamp(min=1e-6) ** self.focal_gamma
        shares = self.smooth(logits, target) * hard
        return -(shares * log_probabilities if weights is None else shares * weights * log_probabilities).sum(1)


LOSSES = one_of(LossConfig, OwnLossConfig, CrossEntropy, Bce, Focal)
