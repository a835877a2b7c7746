"""Compute means of loss, top-1 and top-5 over images from sums."""

from dataclasses import dataclass

import torch
from torch import Tensor

from imagenet_ddp.models.metrics import has_class


@dataclass(frozen=True)
class Means:
    """Means over images; top1 and top5 are fractions."""

    loss: float
    top1: float
    top5: float

    @classmethod
    def from_sums(cls, sums: list[float]) -> "Means":
        loss, hits1, hits5, count = sums
        count = max(count, 1.0)
        return cls(loss / count, hits1 / count, hits5 / count)

    def named(self, suffix: str = "") -> dict[str, Tensor]:
        values = {"loss": self.loss, "top1": self.top1, "top5": self.top5}
        return on_cpu({f"train/{name}{suffix}": value for name, value in values.items()})


def is_hit(logits: Tensor, target: Tensor, top_k: int) -> Tensor:
    """Return bool (B, top_k): whether the target of each image has the highest, second highest, ... logit.
    Never for logits that are not finite."""
    return (logits.topk(top_k).indices == target.unsqueeze(1)) & has_class(logits).unsqueeze(1)


def sums_of(loss_sum: float, hits: list[float], count: float) -> list[float]:
    """Return [sum of losses, top-1 hits, top-k hits, number of images], as Means.from_sums expects. hits: is_hit()
    summed over the images."""
    return [loss_sum, hits[0], sum(hits), count]


def on_cpu(values: dict[str, float]) -> dict[str, Tensor]:
    """Return the values as CPU tensors. Lightning would copy plain numbers to the device, and progress bars would then
    wait for the device in each step."""
    return dict(zip(values, torch.tensor([*values.values()], dtype=torch.float64).unbind(), strict=True))
