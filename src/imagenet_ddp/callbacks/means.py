"""Means of loss, top-1 and top-5 over images, and the sums behind them."""

from dataclasses import dataclass

import torch
from torch import Tensor


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


def sums_of(logits: Tensor, target: Tensor, loss_sum: Tensor, top_k: int, dtype: torch.dtype) -> Tensor:
    """Return [loss, hits in the top 1, in the top k, images], on the device and without waiting for it."""
    hits = logits.topk(top_k).indices == target[:, None]
    count = torch.full((), len(target), dtype=dtype, device=hits.device)  # torch.tensor() would wait for a copy
    return torch.stack([loss_sum.to(dtype), hits[:, 0].sum(), hits.sum(), count])


def on_cpu(values: dict[str, float]) -> dict[str, Tensor]:
    """Return tensors: Lightning would put plain numbers on the device, where progress bars wait for them each step."""
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
