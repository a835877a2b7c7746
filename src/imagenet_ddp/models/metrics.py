"""Compute accuracy and loss over all ranks, count the images of a validation, and compute an evaluation's metrics."""

from collections.abc import Sequence
from typing import Any

import torch
import torchmetrics.classification as tm
from torch import Tensor
from torchmetrics import Metric

from imagenet_ddp.config.schema.commands import METRICS
from imagenet_ddp.models.sums import Sums, loss_dtype

MAX_AUROC_CLASSES = 1000  # AUROC keeps all scores in memory: 0.2 GB for ImageNet's validation images


def has_class(logits: Tensor) -> Tensor:
    """Return bool (B,): whether the logits (B, C) of an image, and so its probabilities, are finite; a class that
    cannot be predicted has -inf. Other images are wrong and predicted as no class."""
    return logits.amax(1).isfinite()  # the highest of values with a NaN is NaN


class ImageMean(Metric):
    """Mean over all images of all ranks, of one of the Sums. It keeps its precision (sums.loss_dtype) even if the
    module is cast to another type, as trainer.precision=bf16-true does."""

    full_state_update = False
    higher_is_better = None

    def __init__(self, name: str) -> None:
        super().__init__()
        self.figure = name
        self.total: Tensor
        self.images: Tensor
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")  # pyright: ignore[reportUnknownMemberType]
        self.add_state("images", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")  # pyright: ignore[reportUnknownMemberType]

    def reset(self) -> None:
        super().reset()
        # converted here, because casting the module casts its states, and moving float64 to an Apple GPU fails
        self.total = self.total.to(loss_dtype(self.total.device))

    def update(self, sums: Sums) -> None:
        """Add a batch. sums: on the device."""
        self.total += sums.totals[self.figure]
        self.images += sums.images

    def compute(self) -> Tensor:
        """Return the mean as a scalar; NaN if there are no images."""
        return self.total / self.images


class ImagesCounted(Metric):
    """Number of times each image of a split was counted over all ranks, to verify that each was counted once."""

    full_state_update = False
    higher_is_better = None

    def __init__(self, num_images: int):
        super().__init__()
        self.times: Tensor
        self.add_state("times", torch.zeros(num_images, dtype=torch.int32), dist_reduce_fx="sum")  # pyright: ignore[reportUnknownMemberType]

    def update(self, index: Tensor) -> None:
        """Add a batch. index: int64 (B,) positions in the split, without repeats within a batch."""
        self.times[index] += 1

    def compute(self) -> tuple[int, int]:
        """Return (images counted at least once, highest count of any image)."""
        return int((self.times > 0).sum()), int(self.times.max()) if len(self.times) else 0


def further_metrics(
    names: Sequence[str], predicted: Tensor, target: Tensor, num_classes: int, scores: Tensor | None = None
) -> dict[str, float | list[float | None]]:
    """Return name -> value of the metrics in `names`. per_class is a list, with None for a class without images.

    predicted, target: int64 (N,); predicted is -1 for an image without a class, which is wrong. scores: float
    (N, num_classes), probabilities; only auroc needs them.
    """
    found: dict[str, float | list[float | None]] = {}
    num_images = torch.bincount(target, minlength=num_classes)
    has_none = predicted < 0
    with_none = predicted.where(~has_none, torch.tensor(num_classes))  # one more class, which is never a label
    occurs = (num_images + torch.bincount(predicted[~has_none], minlength=num_classes)) > 0
    for name in names:
        if name == "auroc":
            found[name] = _auroc(scores, target, num_images)
            continue
        kind_name, arguments = METRICS[name]
        kind: Any = getattr(tm, kind_name)
        if arguments.get("average") not in ("macro", "none"):
            value = kind(num_classes=num_classes + 1, **arguments)(with_none, target)
        else:
            of_each = kind(num_classes=num_classes + 1, **{**arguments, "average": "none"})
            value = of_each(with_none, target)[:num_classes]
            value = value[occurs].mean() if arguments["average"] == "macro" else value
        if arguments.get("average") == "none":
            shares: list[float] = value.tolist()  # pyright: ignore[reportUnknownMemberType]
            found[name] = [each if count else None for each, count in zip(shares, num_images, strict=True)]
        else:
            found[name] = float(value)
    return found


def _auroc(scores: Tensor | None, target: Tensor, num_images: Tensor) -> float:
    """Return the mean of the one-vs-rest AUROC over the classes that have images. torchmetrics would count the other
    classes as 0."""
    assert scores is not None
    has_both = ((num_images > 0) & (num_images < len(target))).cpu()  # one transfer, not one per class
    values = [tm.BinaryAUROC()(scores[:, each], target == each) for each in range(len(has_both)) if has_both[each]]
    return float(torch.stack(values).mean()) if values else float("nan")
