"""Hold the numbers of TrainLog: sums and means over images, the best score of a metric, and the times of steps."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, replace
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


class ImageSums:
    """The sums that Means.from_sums takes, over this rank's images. They stay on the device until they are read.

    epoch: the sums of this epoch to begin with, after a resume within it.
    """

    def __init__(self, device: torch.device | str = "cpu", epoch: list[float] | None = None) -> None:
        dtype = torch.float32 if torch.device(device).type == "mps" else torch.float64
        sums = epoch or [0.0] * 4
        self._last, self._epoch = torch.zeros(3), torch.tensor(sums[:3], dtype=dtype, device=device)
        self._counts = 0, int(sums[3])  # images of the last step, and of this epoch
        self._host: tuple[list[float], list[float]] | None = [0.0] * 4, sums  # None: not read since the last step
        self._taken = sums  # the part of the epoch's sums that take() has returned

    def add(self, loss_sum: Tensor, right: Tensor, count: int) -> None:
        """Add a step. right: bool (count, k), result of hits()."""
        self._last = torch.stack([loss_sum.to(self._epoch.dtype), right[:, 0].sum(), right.sum()])
        self._epoch += self._last
        self._counts, self._host = (count, self._counts[1] + count), None

    def read(self) -> tuple[list[float], list[float]]:
        """Return the sums of the last step and of this epoch. Waits for the device, but only once after each step."""
        if self._host is None:
            # a single copy
            both: list[float] = torch.cat([self._last, self._epoch]).tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            self._host = [*both[:3], self._counts[0]], [*both[3:], self._counts[1]]
        return self._host

    def take(self) -> list[float]:
        """Return the sums since the last call, also those of an earlier epoch. Waits for the device."""
        taken, self._taken = self._taken, self.read()[1]
        return [now - before for now, before in zip(self._taken, taken, strict=True)]

    def begin_epoch(self) -> None:
        last, epoch = self.read()
        self._taken = [taken - now for now, taken in zip(epoch, self._taken, strict=True)]
        self._epoch.zero_()
        self._counts, self._host = (self._counts[0], 0), (last, [0.0] * 4)

    def total(self, trainer: L.Trainer) -> list[float]:
        """Return the sums of this epoch over all ranks. Call on all ranks."""
        mine = torch.tensor(self.read()[1], dtype=self._epoch.dtype, device=self._epoch.device)
        total: Any = trainer.strategy.reduce(mine, reduce_op="sum")  # pyright: ignore[reportUnknownMemberType]
        return total.tolist()


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

    def since(self, mark: "Span") -> "Span":
        """Return the steps after an earlier state of these sums."""
        return Span(*(now - before for now, before in zip(astuple(self), astuple(mark), strict=True)))

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
        self.last, self.run = Span(), Span()
        self._epoch_mark, self._taken = Span(), Span()  # self.run at the epoch's begin, and at the last take()
        self._mark = self._data_s = 0.0

    @property
    def epoch(self) -> Span:
        return self.run.since(self._epoch_mark)

    def begin(self) -> None:
        """Begin the next step now, so that the time since the last step belongs to no step."""
        self._mark = time.perf_counter()

    def begin_epoch(self) -> None:
        self._epoch_mark = replace(self.run)
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
        self.last.add(span)
        self.run.add(span)
        self._mark += span.batch_s

    def take(self) -> Span:
        """Return the steps since the last call."""
        before, self._taken = self._taken, replace(self.run)
        return self._taken.since(before)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": asdict(self.epoch), "run": asdict(self.run)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.run = Span(**state_dict["run"])
        self._epoch_mark, self._taken = self.run.since(Span(**state_dict["epoch"])), replace(self.run)


def hits(pl_module: L.LightningModule, logits: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """Return bool (B, k): whether the target of each image has the highest, second highest, ... logit. Never for logits
    that are not finite. logits: (B, num_classes), of the first B images of the batch."""
    top_k: Any = pl_module.top_k
    right = logits.topk(top_k).indices == batch["target"][: len(logits)].unsqueeze(1)
    return right & has_class(logits).unsqueeze(1)


def on_cpu(values: dict[str, float]) -> dict[str, Tensor]:
    """Return the values as CPU tensors. Lightning would copy plain numbers to the device, and progress bars would then
    wait for the device in each step."""
    return dict(zip(values, torch.tensor([*values.values()], dtype=torch.float64).unbind(), strict=True))
