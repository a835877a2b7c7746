"""Compute the further metrics of an evaluation."""

from collections.abc import Sequence
from typing import Any

import torch
import torchmetrics.classification as tm
from torch import Tensor

from imagenet_ddp.config.schema.evaluate import METRICS

MAX_AUROC_CLASSES = 1000  # AUROC keeps all scores in memory: 0.2 GB for ImageNet's validation images


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
