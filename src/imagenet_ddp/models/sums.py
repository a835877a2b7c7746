"""Sum what is measured over images, on the device: in training, in validation and over the ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


def loss_dtype(device: torch.device) -> torch.dtype:
    """Return the type of a sum of losses: double precision, where the device has it, because a float32 sum of millions
    of losses loses digits, and a bfloat16 sum stops growing after a few hundred."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass
class Sums:
    """Sums over images: of their losses, of those whose label has the highest logit, and of those whose label is among
    the k highest. images: their number. The others are scalar tensors on the device, or numbers after to_host()."""

    loss: Any = 0.0
    top1: Any = 0
    top5: Any = 0
    images: int = 0

    @classmethod
    def zeros(cls, device: torch.device | str) -> "Sums":
        """Return sums on a device, to which others are added."""
        dtype = loss_dtype(torch.device(device))
        count = torch.zeros((), dtype=torch.int64, device=device)
        return cls(torch.zeros((), dtype=dtype, device=device), count, count)

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(self.loss + other.loss, self.top1 + other.top1, self.top5 + other.top5, self.images + other.images)

    def __sub__(self, other: "Sums") -> "Sums":
        return Sums(self.loss - other.loss, self.top1 - other.top1, self.top5 - other.top5, self.images - other.images)

    def numbers(self) -> list[float]:
        """Return the fields of sums on the host, from which of() makes them again."""
        return [self.loss, self.top1, self.top5, self.images]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Sums":
        loss, *counts = numbers
        return cls(float(loss), *map(int, counts))

    def means(self) -> dict[str, float]:
        """Return the means over the images of sums on the host; top1 and top5 are fractions."""
        count = max(self.images, 1)
        return {"loss": self.loss / count, "top1": self.top1 / count, "top5": self.top5 / count}


def to_host(*sums: Sums) -> list[Sums]:
    """Return the sums as numbers. Waits for the device, once for all of them. sums: all of one device."""
    fields = torch.stack([field for each in sums for field in (each.loss, each.top1, each.top5)])
    values: list[float] = fields.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return [Sums.of([*values[3 * at : 3 * at + 3], each.images]) for at, each in enumerate(sums)]
