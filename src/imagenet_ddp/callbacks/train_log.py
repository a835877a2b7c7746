"""Own the numbers of a training run: sums over images, times and best scores. Progress, History, ResumeCheckpoint and
the loggers read them here."""

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor

from imagenet_ddp.callbacks.loop_state import find_callback, is_epoch_over, log_interval, validates_start
from imagenet_ddp.callbacks.measures import Best, Means, Span, StepTimes, is_hit, on_cpu
from imagenet_ddp.data.workers import loader_workers

SAVE_EVERY_S = 1.0  # each save takes 0.3 ms, because loggers open a file for it


class TrainLog(L.Callback):
    """Measure and log train/loss, train/top1, train/top5, lr, images_per_s, data_wait_frac and, on a GPU,
    gpu_memory_gib, which is the peak allocation so far. Keep the scores of the last validation and the best ones.

    Must precede all callbacks that read trainer.callback_metrics. The metrics of images require the batches of
    ImageDataModule and the outputs of ImageClassifier; with other modules, only scores are kept.

    Every trainer.log_every_n_steps optimizer steps, log the means over this rank's images since the last such step. No
    other step waits for the device, and no step waits for another rank, because the sums stay on the device until they
    are logged. At the end of an epoch, and before a validation, trainer.callback_metrics contains the means over all
    ranks' images of the epoch so far, so decisions based on them are the same on all ranks. Loggers receive the means
    of the epoch as train/loss_epoch, train/top1_epoch and train/top5_epoch.

    monitor, mode: metric, and min or max, of the best score that Progress and History show. scores: val/... metrics of
    the last validation in this epoch; empty before it. start: what the weights before the first step are.
    """

    def __init__(self, monitor: str = "val/top1", mode: str = "max") -> None:
        self.scores: dict[str, float] = {}
        self.start = "before the first step"
        self.bests: dict[str, Best] = {}
        self.best = self.track(Best(monitor, mode))
        self.num_epochs = 0  # number of completely trained epochs
        self.train_times, self.val_times = StepTimes(), StepTimes()
        self.train_s = self.train_cpu_s = 0.0  # totals of the parts before a resume
        self.epoch_means: Means | None = None  # means of the last finished epoch, over all ranks
        self.begun = False  # whether this process has trained a step
        self.counts_images = False
        self._sums = self._last = torch.zeros(3)  # on the device: loss, top-1 hits, top-k hits of this epoch and step
        self._num_images = self._num_last = 0
        self._host, self._host_last = [0.0] * 4, [0.0] * 4  # the same on the host, with the number of images
        self._taken = [0.0] * 4  # part of the epoch's sums that take() has returned
        self._is_read = True  # whether the host has the sums of the last step
        self._restored: list[float] | None = None
        self._cpu_mark = self._fit_mark = 0.0
        self._end: float | None = None
        self._end_cpu_s: float | None = None
        self._trainer: L.Trainer | None = None
        self._num_updates = 0  # number of weight updates after the last batch
        self._has_saved = False  # a checkpoint was saved since the last step; its time must not count as a data wait
        self._saved_s = 0.0  # time of the loggers' last save

    def track(self, best: Best) -> Best:
        """Keep the best score of a further metric. Return the one that is already kept, if there is one."""
        return self.bests.setdefault(f"{best.mode} {best.monitor}", best)

    # -- hooks

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._trainer, self._end, self._end_cpu_s, self.begun = trainer, None, None, False
        self._fit_mark, self._cpu_mark = time.perf_counter(), _cpu_s(trainer)
        self.counts_images = hasattr(pl_module, "top_k")
        sums = self._restored if self._restored is not None and trainer.global_rank == 0 else [0.0] * 4
        dtype = torch.float32 if pl_module.device.type == "mps" else torch.float64
        self._sums = torch.tensor(sums[:3], dtype=dtype, device=pl_module.device)
        self._num_images, self._host, self._taken, self._is_read = int(sums[3]), list(sums), list(sums), True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.train_times.begin()
        self._num_updates = trainer.global_step

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.scores, self._has_saved = {}, False
        self._begin_sums()
        self.train_times.begin_epoch()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # Lightning's callbacks that write to loggers use this counter as the step. After a resume within an epoch, it
        # is one too low. It is private, so the version of Lightning is bounded, and a test watches it.
        trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step  # pyright: ignore[reportPrivateUsage]
        if self._has_saved:
            self.train_times.begin()
            self._has_saved = False
        self.train_times.data_is_here()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.begun = True
        if not self.counts_images:
            return
        counted = batch["num_counted"]
        hits = is_hit(outputs["logits"][:counted], batch["target"][:counted], int(pl_module.top_k))  # type: ignore[arg-type]
        self._last = torch.stack([outputs["loss_sum"].to(self._sums.dtype), hits[:, 0].sum(), hits.sum()])
        self._sums += self._last
        self._num_last, self._is_read = counted, False
        self._num_images += counted
        self.train_times.end_step(batch["step_images"])
        step = trainer.global_step  # read once, because Lightning computes it on each access
        is_update, self._num_updates = step != self._num_updates, step
        # Lightning passes metrics to its loggers in exactly these steps
        if is_update and (trainer.should_stop or step % log_interval(trainer) == 0):
            means, span = self.take()
            lr = float(trainer.optimizers[0].param_groups[0]["lr"])
            rest = {"lr": lr, "images_per_s": span.images_per_s, "data_wait_frac": span.data_wait_frac}
            if pl_module.device.type == "cuda":
                rest["gpu_memory_gib"] = torch.cuda.max_memory_allocated(pl_module.device) / 2**30
            self._log(trainer, means.named(), on_cpu(rest))

    def _log(self, trainer: L.Trainer, shown: dict[str, Tensor], rest: dict[str, Tensor]) -> None:
        """Do the work of pl_module.log_dict, which would take 3 ms, and 40 µs in each later step. shown: metrics that
        progress bars also show. rest: all other metrics."""
        trainer.progress_bar_metrics.update({name: float(value) for name, value in shown.items()})
        for metrics in (trainer.callback_metrics, trainer.logged_metrics):
            metrics.update(shown | rest)
        row = {name: float(value) for name, value in (shown | rest).items()}
        for logger in trainer.loggers:
            logger.log_metrics({**row, "epoch": trainer.current_epoch}, trainer.global_step - 1)
        if time.perf_counter() - self._saved_s >= SAVE_EVERY_S:
            self._save(trainer)

    def _save(self, trainer: L.Trainer) -> None:
        self._saved_s = time.perf_counter()
        for logger in trainer.loggers:
            logger.save()

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.counts_images and not trainer.sanity_checking:
            trainer.callback_metrics.update(self.total(trainer).named())
        self.val_times.begin_epoch()

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.val_times.end_step()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking or validates_start(trainer):
            for best in self.bests.values():
                best.update(trainer)
            metrics = trainer.callback_metrics
            self.scores = {name: float(value) for name, value in metrics.items() if name.startswith("val/")}
        self.train_times.begin()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.num_epochs = trainer.current_epoch + is_epoch_over(trainer)
        if self.counts_images:
            self.epoch_means = self.total(trainer)
            pl_module.log_dict(self.epoch_means.named(), prog_bar=True, logger=False)
            # logged here, because Lightning would log these metrics only after the checkpoint is written
            self._log(trainer, {}, self.epoch_means.named("_epoch"))
        if is_epoch_over(trainer):  # else a checkpoint written now continues the epoch
            self._begin_sums()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._end_cpu_s = _cpu_s(trainer)  # must be read before Lightning ends the loader workers

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._end = time.perf_counter()

    # -- values that other callbacks and the summary read

    def current(self) -> tuple[Means, Means]:
        """Return the means over this rank's images as (last step, this epoch so far). Waits for the device, unless the
        sums have been read since the last step."""
        self._read()
        return Means.from_sums(self._host_last), Means.from_sums(self._host)

    def take(self) -> tuple[Means, Span]:
        """Return the means over this rank's images, and the steps, since the last call. Waits for the device."""
        self._read()
        means = Means.from_sums(now - taken for now, taken in zip(self._host, self._taken, strict=True))
        self._taken = list(self._host)
        return means, self.train_times.take()

    def total(self, trainer: L.Trainer) -> Means:
        """Return the means of this epoch so far over all ranks. Call on all ranks."""
        return Means.from_sums(self._total(trainer))

    def validated(
        self, pl_module: L.LightningModule, outputs: Mapping[str, Tensor] | None, batch: Any
    ) -> tuple[Means, Means]:
        """Return the means over this rank's validation images as (last step, this validation so far). Waits for the
        device."""
        sums: list[Tensor] = [pl_module.validation_sums()]  # type: ignore[operator]
        count = 0
        if outputs is not None:
            logits = outputs["logits"]
            count = len(logits)
            hits = is_hit(logits, batch["target"][:count], int(pl_module.top_k))  # type: ignore[arg-type]
            sums.append(torch.stack([outputs["losses"].sum(), hits[:, 0].sum(), hits.sum()]))
        start_s = time.perf_counter()
        numbers: list[float] = torch.cat(sums).tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        self.val_times.add_wait(time.perf_counter() - start_s)
        return Means.from_sums([*(numbers[4:] or [0.0] * 3), count]), Means.from_sums(numbers[:4])

    def times(self, trainer: L.Trainer) -> tuple[float, float]:
        """Return (seconds since training began, CPU seconds of all ranks and their loader workers), including the parts
        before a resume. Call on all ranks."""
        end_cpu_s = _cpu_s(trainer) if self._end_cpu_s is None else self._end_cpu_s
        cpu = torch.tensor(end_cpu_s - self._cpu_mark, device=trainer.strategy.root_device)
        total: Any = trainer.strategy.reduce(cpu, reduce_op="sum")  # pyright: ignore[reportUnknownMemberType]
        return self.elapsed_s, self.train_cpu_s + float(total)

    @property
    def elapsed_s(self) -> float:
        """Return the seconds of training measured on this rank, including the parts before a resume."""
        return self.train_s + (self._end or time.perf_counter()) - self._fit_mark

    # -- sums

    def _begin_sums(self) -> None:
        """Begin the sums of an epoch. What take() has not returned yet remains for its next call."""
        self._read()
        self._taken = [taken - now for now, taken in zip(self._host, self._taken, strict=True)]
        self._sums.zero_()
        self._num_images, self._host = 0, [0.0] * 4

    def _read(self) -> None:
        """Copy the sums to the host. Count the wait for the device as part of this step, not as waiting for data."""
        if self._is_read:
            return
        start_s = time.perf_counter()
        # a single copy
        numbers: list[float] = torch.cat([self._sums, self._last]).tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        self.train_times.add_wait(time.perf_counter() - start_s)
        self._host, self._host_last = [*numbers[:3], self._num_images], [*numbers[3:], self._num_last]
        self._is_read = True

    def _total(self, trainer: L.Trainer) -> list[float]:
        self._read()
        sums = torch.tensor(self._host, dtype=self._sums.dtype, device=self._sums.device)
        total: Any = trainer.strategy.reduce(sums, reduce_op="sum")  # pyright: ignore[reportUnknownMemberType]
        return total.tolist()

    # -- checkpoints

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._save(trainer)  # a resumed run logs only the steps after this checkpoint
        self._has_saved = True

    def state_dict(self) -> dict[str, Any]:
        """Return the sums over all ranks, so that any number of ranks can continue. Lightning calls this on all
        ranks."""
        assert self._trainer is not None
        train_s, train_cpu_s = self.times(self._trainer)
        return {
            "scores": dict(self.scores),
            "bests": {key: asdict(best) for key, best in self.bests.items()},
            "sums": self._total(self._trainer),
            "train_s": train_s,
            "train_cpu_s": train_cpu_s,
            "num_epochs": self.num_epochs,
            "times": self.train_times.state_dict(),  # rank 0's
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for key, stored in state_dict["bests"].items():
            best = self.bests.setdefault(key, Best(stored["monitor"], stored["mode"]))
            best.value, best.epoch, best.step = stored["value"], stored["epoch"], stored["step"]
        self._restored = state_dict["sums"]
        self.train_times.load_state_dict(state_dict["times"])
        for name in ("scores", "train_s", "train_cpu_s", "num_epochs"):
            setattr(self, name, state_dict[name])


def find_log(trainer: L.Trainer) -> TrainLog:
    """Return the trainer's TrainLog. Raises ValueError if it has none."""
    if (log := find_callback(trainer, TrainLog)) is None:
        raise ValueError(
            "the Trainer must have the callback TrainLog, from which this callback reads, got none. "
            "Hint: add imagenet_ddp.callbacks.TrainLog() as the first of the callbacks."
        )
    return log


def _cpu_s(trainer: L.Trainer) -> float:
    """Return the CPU seconds used so far by this process and its running loader workers; the latter only on systems
    with /proc."""
    total = time.process_time()
    for loader in (trainer.train_dataloader, trainer.val_dataloaders):
        for worker in loader_workers(loader):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime: man 5 proc
    return total
