"""Define what a training learns and how it is measured: the loss, the sums over images, the score, and their names in
the log. Training, log and progress ask a Task for these. Another task is a further subclass of Task; if it measures
other things, Sums gets their fields, and ImageClassifier a metric of each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from imagenet_ddp.config.schema.learning import LossConfig
from imagenet_ddp.models.losses import Loss, OwnLoss
from imagenet_ddp.models.metrics import has_class
from imagenet_ddp.models.sums import Sums
from imagenet_ddp.system.text import format_loss, percent


class Figure(NamedTuple):
    """A measure as people read it. name: of a field of Sums. title: in the log. form: (value, digits) -> text. digits:
    their number in a line of the log, and in the progress bar."""

    name: str
    title: str
    form: Callable[[float, int], str]
    digits: tuple[int, int]

    def text(self, value: float, *, short: bool = False) -> str:
        return self.form(value, self.digits[short])


LOSS = Figure("loss", "loss", format_loss, (4, 3))
TOP1, TOP5 = Figure("top1", "top-1", percent, (2, 1)), Figure("top5", "top-5", percent, (2, 1))


class Task(ABC):
    """What a training learns. The means of its sums are logged as train/NAME and val/NAME.

    score, mode: the figure that selects the best weights, and max or min. figures: what lines of the log show.
    """

    score: Figure
    mode: str
    figures: tuple[Figure, ...]

    @abstractmethod
    def training_losses(self, logits: Tensor, batch: Mapping[str, Any], reduction: str) -> Tensor:
        """Return the loss of each image, float (B,), or their mean, a scalar, if reduction is "mean". logits: float
        (B, C), at least float32. batch: of ImageDataModule, with `target` and, after mixing, `soft_target`."""

    @abstractmethod
    def validation_losses(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each image, float (N,), without the changes that the options make to the training loss."""

    @abstractmethod
    def sums(self, loss: Tensor, logits: Tensor, target: Tensor) -> Sums:
        """Return the sums over N images, on their device and without waiting for it. loss: the sum of their losses, a
        scalar. logits: (N, C)."""


class OneLabel(Task):
    """Each image belongs to one class, so target is int64 (N,). With k < 5 classes, top5 is the top-k accuracy.

    loss: the training loss, by default the cross entropy; that of a validation is always the cross entropy.
    """

    score, mode = TOP1, "max"

    def __init__(self, num_classes: int, loss: Loss | OwnLoss | None = None):
        self.top_k = min(5, num_classes)
        self.figures = (LOSS, TOP1, TOP5) if num_classes > 5 else (LOSS, TOP1)  # else top-5 is always 100 %
        self._loss = loss or Loss(LossConfig(), num_classes)

    def training_losses(self, logits: Tensor, batch: Mapping[str, Any], reduction: str) -> Tensor:
        return self._loss(logits, batch["target"], batch.get("soft_target"), reduction)

    def validation_losses(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits, target, reduction="none")

    def sums(self, loss: Tensor, logits: Tensor, target: Tensor) -> Sums:
        places = places_of(logits.detach(), target)
        return Sums(loss.detach(), (places < 1).sum(), (places < self.top_k).sum(), len(logits))


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


def as_words(figures: Iterable[Figure], values: Mapping[str, float], *, short: bool = False) -> str:
    """Format the values that are there, as in "loss 2.3026 top-1 12.00 % top-5 50.00 %"."""
    return " ".join(
        f"{each.title} {each.text(values[each.name], short=short)}" for each in figures if each.name in values
    )
