"""Compute means of loss, top-1 and top-5 over images from sums, and keep the best score of a metric."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import lightning.pytorch as L
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
    def from_sums(cls, sums: Iterable[float]) -> "Means":
        """sums: of the losses, of the top-1 hits and of the top-k hits, and the number of images."""
        loss, hits1, hits5, count = sums
        count = max(count, 1.0)
        return cls(loss / count, hits1 / count, hits5 / count)

    def named(self, suffix: str = "") -> dict[str, Tensor]:
        return on_cpu({f"train/{name}{suffix}": value for name, value in asdict(self).items()})


@dataclass
class Best:
    """The best score of a metric so far. mode: min or max. value: None before the first validation. epoch: the epoch,
    counted from 1, in which it was reached; 0 before the first step. step: the number of optimizer steps after which it
    was reached."""

    monitor: str = "val/top1"
    mode: str = "max"
    value: float | None = None
    epoch: int = 0
    step: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode must be min or max, got {self.mode!r}")

    def update(self, trainer: L.Trainer) -> None:
        """Read the score of the validation that has just ended."""
        value = float(trainer.callback_metrics.get(self.monitor, math.nan))
        sign = 1 if self.mode == "max" else -1
        if not math.isnan(value) and (self.value is None or sign * value > sign * self.value):
            epoch = 0 if trainer.sanity_checking else trainer.current_epoch + 1
            self.value, self.epoch, self.step = value, epoch, trainer.global_step


def is_hit(logits: Tensor, target: Tensor, top_k: int) -> Tensor:
    """Return bool (B, top_k): whether the target of each image has the highest, second highest, ... logit.
    Never for logits that are not finite."""
    return (logits.topk(top_k).indices == target.unsqueeze(1)) & has_class(logits).unsqueeze(1)


def on_cpu(values: dict[str, float]) -> dict[str, Tensor]:
    """Return the values as CPU tensors. Lightning would copy plain numbers to the device, and progress bars would then
    wait for the device in each step."""
    return dict(zip(values, torch.tensor([*values.values()], dtype=torch.float64).unbind(), strict=True))
