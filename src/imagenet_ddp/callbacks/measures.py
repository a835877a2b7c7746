"""Hold the numbers of TrainLog: means over images, the best score of a metric, and the times of steps."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

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


@dataclass
class Span:
    """Steps of a loop: seconds, measured on this rank, and images, over all ranks."""

    images: int = 0
    steps: int = 0
    batch_s: float = 0.0  # whole steps
    data_s: float = 0.0  # the part of them that waited for data

    def add(self, other: "Span") -> None:
        self.images += other.images
        self.steps += other.steps
        self.batch_s += other.batch_s
        self.data_s += other.data_s

    @property
    def images_per_s(self) -> float:
        return self.images / self.batch_s if self.batch_s else 0.0

    @property
    def data_wait_frac(self) -> float:
        return self.data_s / self.batch_s if self.batch_s else 0.0


class StepTimes:
    """The times of a loop's last step, of this epoch, and of the whole run. A step begins when the previous one
    ends."""

    def __init__(self) -> None:
        self.last, self.epoch, self.run, self._since = Span(), Span(), Span(), Span()
        self._mark = self._data_s = 0.0

    def begin(self) -> None:
        """Begin the next step now, so that the time since the last step belongs to no step."""
        self._mark = time.perf_counter()

    def begin_epoch(self) -> None:
        self.epoch = Span()
        self.begin()

    def data_is_here(self) -> None:
        """Count the time of the step so far as waiting for data."""
        self._data_s = time.perf_counter() - self._mark

    def end_step(self, num_images: int = 0) -> None:
        self.last = Span()
        self._add(Span(num_images, 1, time.perf_counter() - self._mark, self._data_s))

    def add_wait(self, seconds: float) -> None:
        """Add the seconds just passed to the last step, but not to its time waiting for data."""
        self._add(Span(batch_s=seconds))

    def _add(self, span: Span) -> None:
        for each in (self.last, self.epoch, self.run, self._since):
            each.add(span)
        self._mark += span.batch_s

    def take(self) -> Span:
        """Return the steps since the last call."""
        taken, self._since = self._since, Span()
        return taken

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": asdict(self.epoch), "run": asdict(self.run)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.epoch, self.run = Span(**state_dict["epoch"]), Span(**state_dict["run"])
