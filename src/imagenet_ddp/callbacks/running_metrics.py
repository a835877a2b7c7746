"""Running figures of an epoch: loss, top-1, top-5, images/s, time spent waiting for data. One small tensor on the
device; the host reads it only where somebody asks."""

import math
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor

from imagenet_ddp.callbacks.loop_position import is_epoch_over
from imagenet_ddp.data.loading.worker_processes import loader_workers


@dataclass(frozen=True)
class Figures:
    """Means over images; top1 and top5 are fractions."""

    loss: float
    top1: float
    top5: float

    @classmethod
    def of(cls, sums: list[float]) -> "Figures":
        loss, hits1, hits5, count = sums
        count = max(count, 1.0)
        return cls(loss / count, hits1 / count, hits5 / count)


# Of this epoch and of all before, rank 0's times: what a run that is stopped in mid-epoch goes on with.
SUMMED = ("num_images", "num_steps", "batch_sum_s", "data_sum_s", "all_images", "all_batch_s", "all_data_s")


class RunningMetrics(L.Callback):
    """Comes before the callbacks that read it. Times are this rank's, in seconds; images are those of all
    ranks."""

    def __init__(self) -> None:
        self.batch_s = self.data_s = 0.0  # of the last step
        self.batch_sum_s = self.data_sum_s = 0.0  # of this epoch's steps
        self.num_steps = 0  # of this epoch
        self.num_images = 0  # of this epoch, over all ranks
        self.train_s = self.train_cpu_s = 0.0  # of earlier epochs and of the part before a resume
        self.all_images = 0  # of the whole run, over all ranks
        self.all_batch_s = self.all_data_s = 0.0
        self.epoch_figures: Figures | None = None  # of the last finished epoch, over all ranks
        self.val_batch_s = self.val_batch_sum_s = 0.0  # of the last step of a validation, of all its steps
        self.num_val_steps = 0
        self._since_images, self._since_batch_s, self._since_data_s = 0, 0.0, 0.0  # since take()
        self._last: Tensor | None = None
        self._sums: Tensor | None = None  # rows: of this epoch; since take()
        self._restored: list[float] | None = None
        self._mark = self._cpu_mark = self._fit_mark = 0.0
        self._trainer: L.Trainer | None = None
        self._is_added = False  # whether this epoch is in all_images, all_batch_s and all_data_s

    # -- timing and sums

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._trainer = trainer
        self._fit_mark, self._cpu_mark = time.perf_counter(), cpu_s(trainer)
        dtype = torch.float32 if pl_module.device.type == "mps" else torch.float64
        self._sums = torch.zeros(2, 4, dtype=dtype, device=pl_module.device)
        if self._restored is not None and trainer.global_rank == 0:
            self._sums[0] += torch.tensor(self._restored, dtype=dtype, device=pl_module.device)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._mark = time.perf_counter()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert self._sums is not None
        self._sums[0].zero_()
        self.batch_sum_s = self.data_sum_s = 0.0
        self.num_steps = self.num_images = 0
        self._is_added = False
        self._mark = time.perf_counter()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.data_s = time.perf_counter() - self._mark

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert self._sums is not None
        counted = batch["num_counted"]
        logits, target = outputs["logits"][:counted], batch["target"][:counted]
        self._last = _sums_of(logits, target, outputs["loss_sum"], int(pl_module.top_k), self._sums.dtype)  # type: ignore[arg-type]
        self._sums += self._last
        self.batch_s = 0.0
        self._add_batch_s(time.perf_counter() - self._mark)
        self.data_sum_s += self.data_s
        self._since_data_s += self.data_s
        self.num_steps += 1
        self.num_images += batch["step_images"]
        self._since_images += batch["step_images"]

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.val_batch_sum_s, self.num_val_steps = 0.0, 0
        self._mark = time.perf_counter()

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.num_val_steps += 1
        self.val_batch_s = 0.0
        self._add_val_batch_s(time.perf_counter() - self._mark)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._mark = time.perf_counter()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.epoch_figures = self.total(trainer)
        if not is_epoch_over(trainer):
            return  # cut short: a checkpoint of this moment continues the epoch
        self.all_images += self.num_images
        self.all_batch_s += self.batch_sum_s
        self.all_data_s += self.data_sum_s
        self._is_added = True
        assert self._sums is not None
        self._sums[0].zero_()  # a checkpoint of this moment is one of the next epoch's start

    # -- what others read

    @property
    def begun(self) -> bool:
        """Whether this process has trained a step."""
        return self._last is not None

    def current(self) -> tuple[Figures, Figures]:
        """(last step, this epoch so far), of this rank's images. Waits for the device."""
        assert self._last is not None and self._sums is not None
        last, mean = self._read(torch.stack([self._last, self._sums[0]]))
        return Figures.of(last), Figures.of(mean)

    def take(self) -> tuple[Figures, float, float]:
        """(figures of this rank's images, images/s over all ranks, share of the time spent waiting for data) since
        the last call. Waits for the device."""
        assert self._sums is not None
        figures = Figures.of(self._read(self._sums[1]))
        batch_s = self._since_batch_s or math.inf
        images_per_s, data_wait_frac = self._since_images / batch_s, self._since_data_s / batch_s
        self._sums[1].zero_()
        self._since_images, self._since_batch_s, self._since_data_s = 0, 0.0, 0.0
        return figures, images_per_s, data_wait_frac

    def total(self, trainer: L.Trainer) -> Figures:
        """Of this epoch so far, over all ranks. Called on all of them."""
        return Figures.of(self._total(trainer))

    def validated(
        self, pl_module: L.LightningModule, outputs: Mapping[str, Tensor] | None, batch: Any
    ) -> tuple[Figures, Figures]:
        """(last step, this validation so far), of this rank's images. Waits for the device."""
        so_far: Tensor = pl_module.validation_sums()  # type: ignore[operator]
        last = torch.zeros_like(so_far)
        if outputs is not None:
            logits, losses = outputs["logits"], outputs["losses"]
            target, top_k = batch["target"][: len(logits)], int(pl_module.top_k)  # type: ignore[arg-type]
            last = _sums_of(logits, target, losses.sum(), top_k, so_far.dtype)
        begun = time.perf_counter()
        of_last, of_all = torch.stack([last, so_far]).tolist()
        self._add_val_batch_s(time.perf_counter() - begun)
        return Figures.of(of_last), Figures.of(of_all)

    @property
    def images_per_s(self) -> float:
        """Of all ranks, in this epoch's training."""
        return self.num_images / self.batch_sum_s if self.batch_sum_s else 0.0

    @property
    def data_wait_frac(self) -> float:
        """Share of this epoch's training time that this rank waited for its loader."""
        return self.data_sum_s / self.batch_sum_s if self.batch_sum_s else 0.0

    def speed(self) -> tuple[float | None, float | None]:
        """(images per second of all ranks, share of the training time that this rank waited for its loader) of the
        whole run; None before the first step."""
        images, batch_s, data_s = self.all_images, self.all_batch_s, self.all_data_s
        if not self._is_added:
            images, batch_s, data_s = images + self.num_images, batch_s + self.batch_sum_s, data_s + self.data_sum_s
        return (images / batch_s, data_s / batch_s) if batch_s else (None, None)

    def times(self, trainer: L.Trainer) -> tuple[float, float]:
        """(train_s, train_cpu_s): seconds since training began, resumed parts added up; CPU seconds of all ranks and
        their loader workers. Called on all ranks."""
        cpu = torch.tensor(cpu_s(trainer) - self._cpu_mark, device=trainer.strategy.root_device)
        total = trainer.strategy.reduce(cpu, reduce_op="sum")
        return self.elapsed_s, self.train_cpu_s + float(total)

    @property
    def elapsed_s(self) -> float:
        """Since training began, resumed parts added up; of this rank alone, so no other is asked."""
        return self.train_s + time.perf_counter() - self._fit_mark

    def _total(self, trainer: L.Trainer) -> list[float]:
        assert self._sums is not None
        return trainer.strategy.reduce(self._sums[0].clone(), reduce_op="sum").tolist()

    def _read(self, tensor: Tensor) -> Any:
        """On the host. The wait for the device is part of this step, and no waiting for the next one's data."""
        begun = time.perf_counter()
        numbers = tensor.tolist()
        self._add_batch_s(time.perf_counter() - begun)
        return numbers

    def _add_batch_s(self, seconds: float) -> None:
        self.batch_s += seconds
        self.batch_sum_s += seconds
        self._since_batch_s += seconds
        self._mark += seconds

    def _add_val_batch_s(self, seconds: float) -> None:
        self.val_batch_s += seconds
        self.val_batch_sum_s += seconds
        self._mark += seconds

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Called on all ranks (Lightning's dump_checkpoint): the sums over all of them, so that any number can go
        on."""
        assert self._trainer is not None
        train_s, train_cpu_s = self.times(self._trainer)
        return {
            "sums": self._total(self._trainer),
            "train_s": train_s,
            "train_cpu_s": train_cpu_s,
            **{name: getattr(self, name) for name in SUMMED},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict["sums"]
        for name in ("train_s", "train_cpu_s", *SUMMED):
            setattr(self, name, state_dict.get(name, 0))


def _sums_of(logits: Tensor, target: Tensor, loss_sum: Tensor, top_k: int, dtype: torch.dtype) -> Tensor:
    """[loss, hits in the top 1, in the top k, images], on the device and without a wait for it."""
    hits = logits.topk(top_k).indices == target[:, None]
    count = torch.full((), len(target), dtype=dtype, device=hits.device)  # torch.tensor() would wait for a copy
    return torch.stack([loss_sum.to(dtype), hits[:, 0].sum(), hits.sum(), count])


def cpu_s(trainer: L.Trainer) -> float:
    """CPU seconds of this process and of its loader workers so far."""
    loaders = [trainer.train_dataloader, trainer.val_dataloaders]
    workers = [worker for loader in loaders for worker in loader_workers(loader)]
    return time.process_time() + process_cpu_s(worker.pid for worker in workers)


def process_cpu_s(pids: Iterable[int]) -> float:
    """Of other, living processes; 0 where the system does not tell (no /proc)."""
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime: man 5 proc
    return total
