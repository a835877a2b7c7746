"""Sum what is measured over the images of a rank, on its device. Over the ranks, ImageMean of metrics.py sums a
validation, and RunningSums of callbacks/measures.py a training."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


def loss_dtype(device: torch.device) -> torch.dtype:
    """Return the type of a sum of losses: double precision, where the device has it, because a float32 sum of millions
    of losses loses digits, and a bfloat16 sum stops growing after a few hundred."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass
class Sums:
    """Sums over images, by the name of the figure that is their mean. images: their number. The sums are scalar tensors
    on the device, or numbers after to_host()."""

    totals: dict[str, Any] = field(default_factory=dict[str, Any])
    images: int = 0

    @classmethod
    def zeros(cls, names: Sequence[str], device: torch.device | str) -> "Sums":
        zero = torch.zeros((), dtype=loss_dtype(torch.device(device)), device=device)
        return cls(dict.fromkeys(names, zero))

    def __add__(self, other: "Sums") -> "Sums":
        totals = {name: total + other.totals[name] for name, total in self.totals.items()}
        return Sums(totals, self.images + other.images)

    def __sub__(self, other: "Sums") -> "Sums":
        totals = {name: total - other.totals[name] for name, total in self.totals.items()}
        return Sums(totals, self.images - other.images)

    def numbers(self) -> list[float]:
        """Return sums on the host as a list, from which of() makes them again."""
        return [*self.totals.values(), self.images]

    @classmethod
    def of(cls, names: Sequence[str], numbers: Sequence[float]) -> "Sums":
        return cls(dict(zip(names, map(float, numbers[:-1]), strict=True)), int(numbers[-1]))

    def means(self) -> dict[str, float]:
        """Return the means over the images of sums on the host."""
        count = max(self.images, 1)
        return {name: total / count for name, total in self.totals.items()}


def to_host(*sums: Sums) -> list[Sums]:
    """Return the sums as numbers. Waits for the device, once for all of them. sums: all of one device."""
    fields = [total for each in sums for total in each.totals.values()]
    values: list[float] = torch.stack(fields).tolist() if fields else []  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    found = iter(values)
    return [Sums({name: next(found) for name in each.totals}, each.images) for each in sums]
