"""Define what is learned and how it is measured: the loss, the sums over images, and the score. Training, log,
evaluation and report get these from a Task, and their words from config/figures.py. Another task is a further subclass
of Task, and a row there."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric

from imagenet_ddp.config.figures import FIGURES_OF, LOSS, TOP1, Figure
from imagenet_ddp.config.schema.losses import CrossEntropy
from imagenet_ddp.models.losses import Loss, OwnLoss
from imagenet_ddp.models.sums import Sums


class Task(ABC):
    """What a training learns.

    labels: value of data.labels. figures: what lines of the log show: the loss, the score, which selects the best
    weights, and further ones. has_one_prediction: whether an image has one predicted class, as predictions.csv needs.
    guess_loss: of a validation with a net whose logits are all 0.
    """

    labels: str
    figures: tuple[Figure, ...]
    has_one_prediction = True
    guess_loss: float

    @property
    def sums_of(self) -> list[str]:
        """Return the names of the sums over images, whose means are logged as train/NAME and val/NAME."""
        return [each.name for each in FIGURES_OF[self.labels] if each.is_mean]

    @property
    def score(self) -> Figure:
        return self.figures[1]

    @property
    def val_metrics(self) -> list[str]:
        """Return the names of the metrics of a validation, with the loss last."""
        loss, *others = FIGURES_OF[self.labels]
        return [f"val/{each.name}" for each in (*others, loss)]

    def val_measures(self, num_images: int) -> dict[str, Metric]:
        """Return the metrics of a validation that are not means over images, by the names of their figures. Each is
        updated with (logits, target, index). num_images: of the split."""
        return {}

    @abstractmethod
    def training_losses(self, logits: Tensor, batch: Mapping[str, Any], reduction: str) -> Tensor:
        """Return the loss of each image, float (B,), or their mean, a scalar, if reduction is "mean". logits: float
        (B, C), at least float32. batch: of ImageDataModule, with `target` and, after mixing, `soft_target`."""

    @abstractmethod
    def validation_losses(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each image, float (N,), without the changes that the options make to the training loss."""

    @staticmethod
    @abstractmethod
    def probabilities(logits: Tensor) -> Tensor:
        """Return the probability of each class. logits: float (N, C)."""

    @abstractmethod
    def sums(self, loss: Tensor, logits: Tensor, target: Tensor) -> Sums:
        """Return the sums over N images, on their device and without waiting for it. loss: the sum of their losses, a
        scalar. logits: (N, C)."""


class OneLabel(Task):
    """Each image belongs to one class, so target is int64 (N,). With k < 5 classes, top5 is the top-k accuracy.

    loss: the training loss, by default the cross entropy; that of a validation is always the cross entropy.
    """

    labels = "one"

    def __init__(self, num_classes: int, loss: Loss | OwnLoss | None = None):
        self.top_k, self.guess_loss = min(5, num_classes), math.log(max(num_classes, 2))
        self.figures = FIGURES_OF["one"] if num_classes > 5 else (LOSS, TOP1)  # else top-5 is always 100 %
        self._loss = loss or Loss(CrossEntropy(), num_classes)

    def training_losses(self, logits: Tensor, batch: Mapping[str, Any], reduction: str) -> Tensor:
        return self._loss(logits, batch["target"], batch.get("soft_target"), reduction)

    def validation_losses(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits, target, reduction="none")

    def sums(self, loss: Tensor, logits: Tensor, target: Tensor) -> Sums:
        places = places_of(logits.detach(), target)
        hits = {"top1": (places < 1).sum(), "top5": (places < self.top_k).sum()}
        return Sums({"loss": loss.detach(), **hits}, len(logits))

    @staticmethod
    def probabilities(logits: Tensor) -> Tensor:
        return logits.softmax(dim=1)


def task_of(module: Any) -> Task | None:
    """Return the task of a Lightning module; None if it is one of the user's own, which counts no images."""
    task = getattr(module, "task", None)
    return task if isinstance(task, Task) else None


def places_of(logits: Tensor, target: Tensor) -> Tensor:
    """Return the place of each image's label among its classes by falling logit, int64 (N,), from 0; C where the logits
    are not finite, so that the image is wrong. Of equal logits, which are frequent in bfloat16, that of the first class
    comes first, as in argmax and a stable sort; topk orders them differently from device to device."""
    own, classes = logits.gather(1, target[:, None]), torch.arange(logits.shape[1], device=logits.device)
    is_before = torch.where(classes < target[:, None], logits >= own, logits > own)
    return is_before.sum(1).masked_fill(~has_class(logits), logits.shape[1])


def has_class(logits: Tensor) -> Tensor:
    """Return bool (B,): whether the logits (B, C) of an image, and so its probabilities, are finite; a class that
    cannot be predicted has -inf. Other images are wrong and predicted as no class."""
    return logits.amax(1).isfinite()  # the highest of values with a NaN is NaN
