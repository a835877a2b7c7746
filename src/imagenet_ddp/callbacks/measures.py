"""Hold the numbers of TrainLog: sums over images, the best score of a metric, and the times of steps."""

import contextlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor

from imagenet_ddp.config.figures import LOSS
from imagenet_ddp.data.loader_processes import loader_workers
from imagenet_ddp.models.sums import Sums, loss_dtype, to_host


class RunningSums:
    """The sums of the last step and of an epoch, over this rank's images. They stay on the device until they are read.

    names: of the sums. epoch: the sums of this epoch to begin with, after a resume within it.
    """

    def __init__(
        self, names: Sequence[str] = (), device: torch.device | str = "cpu", epoch: Sums | None = None
    ) -> None:
        self._names, self._device = names, device
        taken = epoch or self._zero()
        self._last, self._epoch = self._zero(), Sums.zeros(names, device) + taken
        self._host: tuple[Sums, Sums] | None = self._zero(), taken  # None: not read since the last step
        self._taken = taken  # the part of the epoch's sums that take() has returned

    def _zero(self) -> Sums:
        return Sums(dict.fromkeys(self._names, 0.0))

    def add(self, step: Sums) -> None:
        self._last, self._epoch, self._host = step, self._epoch + step, None

    def read(self) -> tuple[Sums, Sums]:
        """Return the sums of the last step and of this epoch. Waits for the device, but only once after each step."""
        if self._host is None:
            last, epoch = to_host(self._last, self._epoch)
            self._host = last, epoch
        return self._host

    def take(self) -> Sums:
        """Return the sums since the last call, also those of an earlier epoch. Waits for the device."""
        taken, self._taken = self._taken, self.read()[1]
        return self._taken - taken

    def begin_epoch(self) -> None:
        last, epoch = self.read()
        self._taken = self._taken - epoch
        self._epoch, self._host = Sums.zeros(self._names, self._device), (last, self._zero())

    def total(self, trainer: L.Trainer) -> Sums:
        """Return the sums of this epoch over all ranks. Call on all ranks."""
        dtype = loss_dtype(torch.device(self._device))
        mine = torch.tensor(self.read()[1].numbers(), dtype=dtype, device=self._device)
        total: Any = trainer.strategy.reduce(mine, reduce_op="sum")  # pyright: ignore[reportUnknownMemberType]
        return Sums.of(self._names, total.tolist())


@dataclass
class Best:
    """The best score of a metric so far; of equal ones, which few validation images often give, that with the lowest
    val/loss. mode: min or max. value: None before the first validation. epoch: the epoch, counted from 1, in which it
    was reached; 0 before the first step. step: the number of optimizer steps after which it was reached. loss: -inf
    if it is not known."""

    monitor: str
    mode: str = "max"
    value: float | None = None
    epoch: int = 0
    step: int | None = None
    loss: float = -math.inf

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode must be min or max, got {self.mode!r}")

    def update(self, trainer: L.Trainer) -> None:
        """Read the score of the validation that has just ended."""
        value = float(trainer.callback_metrics.get(self.monitor, math.nan))
        loss = float(trainer.callback_metrics.get(f"val/{LOSS.name}", -math.inf))
        sign = 1 if self.mode == "max" else -1
        is_better = self.value is None or sign * value > sign * self.value
        if not math.isnan(value) and (is_better or (value == self.value and loss < self.loss)):
            epoch = 0 if trainer.sanity_checking else trainer.current_epoch + 1
            self.value, self.epoch, self.step, self.loss = value, epoch, trainer.global_step, loss


@dataclass
class Span:
    """Steps of a loop: seconds, measured on this rank, and images, over all ranks."""

    images: int = 0
    steps: int = 0
    batch_s: float = 0.0  # whole steps
    data_s: float = 0.0  # the part of them that waited for data

    @classmethod
    def of(cls, stored: Mapping[str, float]) -> "Span":
        """Return the steps of a checkpoint."""
        return cls(int(stored["images"]), int(stored["steps"]), float(stored["batch_s"]), float(stored["data_s"]))

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

    def add_callbacks(self) -> None:
        """Add the time since the last step ended to that step, but not to its time waiting for data."""
        self.add_wait(time.perf_counter() - self._mark)

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
        self.run = Span.of(state_dict["run"])
        self._epoch_mark, self._taken = self.run.since(Span.of(state_dict["epoch"])), replace(self.run)


def cpu_seconds(trainer: L.Trainer) -> float:
    """Return the CPU seconds used so far by this process and its running loader workers; the latter only on systems
    with /proc."""
    total = time.process_time()
    for loader in (trainer.train_dataloader, trainer.val_dataloaders):
        for worker in loader_workers(loader):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{worker.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime: man 5 proc
    return total


def on_cpu(values: Mapping[str, float]) -> dict[str, Tensor]:
    """Return the values as CPU tensors. Lightning would copy plain numbers to the device, and progress bars would then
    wait for the device in each step."""
    return dict(zip(values, torch.tensor([*values.values()], dtype=torch.float64).unbind(), strict=True))
