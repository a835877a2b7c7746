"""Measure and log loss, top-1, top-5, images/s and the time spent waiting for data."""

import time
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor

from imagenet_ddp.callbacks.cpu_time import cpu_s
from imagenet_ddp.callbacks.image_means import Means, is_hit, on_cpu, sums_of
from imagenet_ddp.callbacks.image_sums import ImageSums, concatenate
from imagenet_ddp.callbacks.loop_state import is_epoch_over, log_interval
from imagenet_ddp.callbacks.scores import ScoreCallback
from imagenet_ddp.callbacks.step_times import StepTimes

SAVE_EVERY_S = 1.0  # each save takes 0.3 ms, because loggers open a file for it


class RunningMetrics(ScoreCallback):
    """Log train/loss, train/top1, train/top5, lr, images_per_s, data_wait_frac and, on a GPU, gpu_memory_gib, which is
    the peak allocation so far. Callbacks after this one can read these values. Requires the batches of ImageDataModule
    and the outputs of ImageClassifier.

    Every trainer.log_every_n_steps optimizer steps, log the means over this rank's images since the last such step. No
    other step waits for the device, and no step waits for another rank, because the sums stay on the device until they
    are logged. At the end of an epoch, and before a validation, trainer.callback_metrics contains the means over all
    ranks' images of the epoch so far, so decisions based on them are the same on all ranks. Loggers receive the means
    of the epoch as train/loss_epoch, train/top1_epoch and train/top5_epoch.

    Times are measured on this rank, in seconds. Numbers of images are totals over all ranks.
    """

    def __init__(self, monitor: str = "val/top1", mode: str = "max") -> None:
        super().__init__(monitor, mode)
        self.num_epochs = 0  # number of completely trained epochs
        self.train_times, self.val_times = StepTimes(), StepTimes()
        self.train_s = self.train_cpu_s = 0.0  # totals of the parts before a resume
        self.epoch_means: Means | None = None  # means of the last finished epoch, over all ranks
        self._sums: ImageSums | None = None  # sums of the current fit; sums.since: since the last call of take()
        self._restored: list[float] | None = None
        self._cpu_mark = self._fit_mark = 0.0
        self._end: float | None = None
        self._end_cpu_s: float | None = None
        self._trainer: L.Trainer | None = None
        self._num_updates = 0  # number of weight updates after the last batch
        self._has_saved = False  # a checkpoint was saved since the last step; its time must not count as a data wait
        self._saved_s = 0.0  # time of the loggers' last save

    # -- hooks

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._trainer, self._end, self._end_cpu_s = trainer, None, None
        self._fit_mark, self._cpu_mark = time.perf_counter(), cpu_s(trainer)
        self._sums = ImageSums(pl_module.device, int(pl_module.top_k))  # type: ignore[arg-type]
        if self._restored is not None and trainer.global_rank == 0:
            self._sums.epoch += self._restored

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.train_times.begin()
        self._num_updates = trainer.global_step

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_epoch_start(trainer, pl_module)
        self.sums.epoch[:] = 0.0
        self._has_saved = False
        self.train_times.begin_epoch()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # Loggers, and Lightning's callbacks that write to them, use this counter as the step. After a resume within an
        # epoch, it is one too low. It is private, so the version of Lightning is bounded, and
        # tests/callbacks/test_running_metrics.py tests it.
        trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step
        if self._has_saved:
            self.train_times.begin()
            self._has_saved = False
        self.train_times.data_is_here()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        counted, logits, target = batch["num_counted"], outputs["logits"], batch["target"]
        if counted < len(target):
            logits, target = logits[:counted], target[:counted]
        self.sums.add(outputs["loss_sum"], logits, target)
        self.train_times.end_step(batch["step_images"])
        step = trainer.global_step  # read once, because Lightning computes it on each access
        is_update, self._num_updates = step != self._num_updates, step
        # Lightning passes metrics to its loggers in exactly these steps
        if is_update and (trainer.should_stop or step % log_interval(trainer) == 0):
            means, images_per_s, data_wait_frac = self.take()
            lr = float(trainer.optimizers[0].param_groups[0]["lr"])
            rest = {"lr": lr, "images_per_s": images_per_s, "data_wait_frac": data_wait_frac}
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
        if self._sums is not None and not trainer.sanity_checking:
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
        super().on_validation_end(trainer, pl_module)
        self.train_times.begin()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.epoch_means = self.total(trainer)
        pl_module.log_dict(self.epoch_means.named(), prog_bar=True, logger=False)
        # logged here, because Lightning would log these metrics only after the checkpoint is written
        self._log(trainer, {}, self.epoch_means.named("_epoch"))
        self.num_epochs = trainer.current_epoch + is_epoch_over(trainer)
        if not is_epoch_over(trainer):
            return  # a checkpoint written now continues the epoch
        self.train_times.end_epoch()
        self.sums.epoch[:] = 0.0  # a checkpoint written now begins the next epoch

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._end_cpu_s = cpu_s(trainer)  # must be read before Lightning ends the loader workers

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._end = time.perf_counter()

    # -- values that other callbacks and the summary read

    @property
    def begun(self) -> bool:
        """Return whether this process has trained a step."""
        return self._sums is not None and self._sums.begun

    def current(self) -> tuple[Means, Means]:
        """Return the means over this rank's images as (last step, this epoch so far). Waits for the device, unless the
        sums have been read since the last step."""
        self._read()
        return Means.from_sums(self.sums.last.tolist()), Means.from_sums(self.sums.epoch.tolist())

    def take(self) -> tuple[Means, float, float]:
        """Return (means over this rank's images, images/s over all ranks, share of time waiting for data) since the
        last call. Waits for the device."""
        self._read()
        means = Means.from_sums(self.sums.since.tolist())
        self.sums.since[:] = 0.0
        return means, *self.train_times.take()

    def total(self, trainer: L.Trainer) -> Means:
        """Return the means of this epoch so far over all ranks. Call on all ranks."""
        return Means.from_sums(self._total(trainer))

    def validated(
        self, pl_module: L.LightningModule, outputs: Mapping[str, Tensor] | None, batch: Any
    ) -> tuple[Means, Means]:
        """Return the means over this rank's validation images as (last step, this validation so far). Waits for the
        device."""
        so_far: Tensor = pl_module.validation_sums()  # type: ignore[operator]
        parts: list[Tensor] = []
        count = 0
        if outputs is not None:
            logits, losses = outputs["logits"], outputs["losses"]
            hits = is_hit(logits, batch["target"][: len(logits)], int(pl_module.top_k))  # type: ignore[arg-type]
            parts, count = [losses.sum(), hits.sum(0)], len(logits)
        start_s = time.perf_counter()
        loss, top1, top5, images, *last = concatenate(so_far, *parts).tolist()
        self.val_times.add(time.perf_counter() - start_s)
        of_last = sums_of(last[0], last[1:], count) if last else [0.0] * 4
        return Means.from_sums(of_last), Means.from_sums([loss, top1, top5, images])

    def times(self, trainer: L.Trainer) -> tuple[float, float]:
        """Return (seconds since training began, CPU seconds of all ranks and their loader workers), including the parts
        before a resume. Call on all ranks."""
        end_cpu_s = cpu_s(trainer) if self._end_cpu_s is None else self._end_cpu_s
        cpu = torch.tensor(end_cpu_s - self._cpu_mark, device=trainer.strategy.root_device)
        total = trainer.strategy.reduce(cpu, reduce_op="sum")
        return self.elapsed_s, self.train_cpu_s + float(total)

    @property
    def elapsed_s(self) -> float:
        """Return the seconds of training measured on this rank, including the parts before a resume."""
        return self.train_s + (self._end or time.perf_counter()) - self._fit_mark

    # -- sums

    @property
    def sums(self) -> ImageSums:
        """Return the sums over this rank's images, which exist only after the training has started."""
        assert self._sums is not None
        return self._sums

    def _total(self, trainer: L.Trainer) -> list[float]:
        self._read()
        return trainer.strategy.reduce(self.sums.epoch_on_device(), reduce_op="sum").tolist()

    def _read(self) -> None:
        """Copy the sums to the host. Count the wait for the device as part of this step, not as waiting for data."""
        start_s = time.perf_counter()
        self.sums.read()
        self.train_times.add(time.perf_counter() - start_s)

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
            **super().state_dict(),
            "sums": self._total(self._trainer),
            "train_s": train_s,
            "train_cpu_s": train_cpu_s,
            "num_epochs": self.num_epochs,
            **self.train_times.state_dict(),  # rank 0's
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._restored = state_dict["sums"]
        self.train_times.load_state_dict(state_dict)
        for name in ("train_s", "train_cpu_s", "num_epochs"):
            setattr(self, name, state_dict[name])
