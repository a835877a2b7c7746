"""Sum what is measured over the images of a rank, on its device. Over the ranks, ImageMean sums a validation, and
RunningSums of callbacks/measures.py a training."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


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
