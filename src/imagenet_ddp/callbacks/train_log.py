"""Sum and time what a training run measures: losses, accuracies, times and best scores. Progress, History,
ResumeCheckpoint and the loggers read them here."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import lightning.pytorch as L
import torch

from imagenet_ddp.callbacks.loop_state import find_callback, is_epoch_over, log_interval, validates_start
from imagenet_ddp.callbacks.measures import Best, RunningSums, StepTimes, cpu_seconds, on_cpu
from imagenet_ddp.config.figures import FIGURES_OF, START, TOP1
from imagenet_ddp.errors import RunError
from imagenet_ddp.models.lightning_module import STEP_RETURNS
from imagenet_ddp.models.sums import Sums
from imagenet_ddp.models.task import task_of

SAVE_EVERY_S = 1.0  # each save takes 0.3 ms, because loggers open a file for it


class TrainLog(L.Callback):
    """Measure and log train/loss, train/top1, train/top5, lr, images_per_s, data_wait_frac and, on a GPU,
    gpu_memory_gib, which is the peak allocation so far. Keep the scores of the last validation and the best ones.

    Must precede all callbacks that read trainer.callback_metrics. The metrics of images require the batches of
    ImageDataModule and a module with a task, as ImageClassifier is; with other modules, only scores are kept.

    Every trainer.log_every_n_steps updates of the weights, log the means over this rank's images since the last such
    update. No other step waits for the device, and no step waits for another rank, because the sums stay on the device
    until they are logged. At the end of an epoch, and before a validation, trainer.callback_metrics contains the means
    over all ranks' images of the epoch so far, so decisions based on them are the same on all ranks. Loggers receive
    the means of the epoch as train/loss_epoch, train/top1_epoch and train/top5_epoch.

    monitor, mode: metric, and min or max, of the best score that Progress and History show. scores: val/... metrics of
    the last validation in this epoch; empty before it. start: what the weights before the first step are.
    """

    def __init__(self, monitor: str = f"val/{TOP1.name}", mode: str = TOP1.mode, start: str = START) -> None:
        self.scores: dict[str, float] = {}
        self.start = start
        self.bests: dict[str, Best] = {}
        self.best = self.track(Best(monitor, mode))
        self.num_epochs = 0  # number of completely trained epochs
        self.num_begun = 0  # the same with the last one, which may have ended early
        self.val_step: int | None = None  # optimizer steps before the last validation
        self.figures = FIGURES_OF["one"]  # what lines show
        self.sums = RunningSums()
        self.train_times, self.val_times = StepTimes(), StepTimes()
        self.train_s = self.train_cpu_s = 0.0  # totals of the parts before a resume
        self.epoch_means: dict[str, float] | None = None  # of the last finished epoch, over all ranks
        self.begun = False  # whether this process has trained a step
        self.updated = False  # whether this process has updated the weights
        self.failure: BaseException | None = None  # the error or stop that ended the training
        self.counts_images = False
        self._restored: Sums | None = None
        self._sums_of = [each.name for each in self.figures]
        self._begin_s = self._begin_cpu_s = 0.0
        self._end: tuple[float, float] | None = None  # time and CPU seconds at the end of the training
        self._trainer: L.Trainer | None = None
        self._num_updates = 0  # number of weight updates after the last batch
        self._has_saved = False  # a checkpoint was saved since the last step; its time must not count as a data wait
        self._saved_s = 0.0  # time of the loggers' last save

    def track(self, best: Best) -> Best:
        """Keep the best score of a further metric. Return the one that is already kept, if there is one."""
        return self.bests.setdefault(f"{best.mode} {best.monitor}", best)

    # -- hooks

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if task := task_of(pl_module):
            self.figures = task.figures
        self._sums_of = task.sums_of if task else []

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._trainer, self._end, self.begun, self.updated = trainer, None, False, False
        self._begin_s, self._begin_cpu_s = time.perf_counter(), cpu_seconds(trainer)
        self.counts_images = task_of(pl_module) is not None
        # restored sums are those of all ranks
        epoch = self._restored if trainer.global_rank == 0 else None
        self.sums = RunningSums(self._sums_of, pl_module.device, epoch)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.train_times.begin()
        self._num_updates = trainer.global_step

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.scores, self._has_saved = {}, False
        self.sums.begin_epoch()
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
        if "sums" not in outputs:
            what = "training_step must return the sums that are logged beside the loss, but did not"
            raise RunError(f"{what}. Hint: {STEP_RETURNS}.")
        self.sums.add(outputs["sums"])
        self.train_times.end_step(batch["step_images"])
        step = trainer.global_step  # read once, because Lightning computes it on each access
        is_update, self._num_updates = step != self._num_updates, step
        self.updated = self.updated or is_update
        # Lightning passes metrics to its loggers in exactly these steps
        if is_update and (trainer.should_stop or step % log_interval(trainer) == 0):
            self.read_sums()
            means, span = self.sums.take().means(), self.train_times.take()
            lr = float(trainer.optimizers[0].param_groups[0]["lr"])  # with optim.layer_decay, that of the first layers
            rest = {"lr": lr, "images_per_s": span.images_per_s, "data_wait_frac": span.data_wait_frac}
            if pl_module.device.type == "cuda":
                rest["gpu_memory_gib"] = torch.cuda.max_memory_allocated(pl_module.device) / 2**30
            self._log(trainer, train_names(means), rest)

    def after_callbacks(self) -> None:
        """Count the time of the user's callbacks after a step as part of it, not as waiting for data."""
        if self.counts_images and not self._has_saved:
            self.train_times.add_callbacks()

    def _log(self, trainer: L.Trainer, shown: dict[str, float], rest: dict[str, float]) -> None:
        """Do the work of pl_module.log_dict, which would take 3 ms, and 40 µs in each later step. shown: metrics that
        progress bars also show. rest: all other metrics."""
        trainer.progress_bar_metrics.update(shown)
        row = shown | rest
        for metrics in (trainer.callback_metrics, trainer.logged_metrics):
            metrics.update(on_cpu(row))
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
            trainer.callback_metrics.update(on_cpu(train_names(self._total(trainer))))
        self.val_times.begin_epoch()

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self.val_times.end_step()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking or validates_start(trainer):
            self.val_step = trainer.global_step
            for best in self.bests.values():
                best.update(trainer)
            metrics = trainer.callback_metrics
            self.scores = {name: float(value) for name, value in metrics.items() if name.startswith("val/")}
        self.train_times.begin()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.num_begun = trainer.current_epoch + 1
        self.num_epochs = trainer.current_epoch + is_epoch_over(trainer)
        if self.counts_images:
            self.epoch_means = self._total(trainer)
            pl_module.log_dict(on_cpu(train_names(self.epoch_means)), prog_bar=True, logger=False)
            # logged here, because Lightning would log these metrics only after the checkpoint is written
            self._log(trainer, {}, train_names(self.epoch_means, "_epoch"))
        if is_epoch_over(trainer):  # else a checkpoint written now continues the epoch
            self.sums.begin_epoch()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._end = time.perf_counter(), cpu_seconds(trainer)  # read before Lightning ends the loader workers

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self.failure = exception

    # -- values that other callbacks and the summary read

    def read_sums(self) -> tuple[Sums, Sums]:
        """Return the sums of the last step and of this epoch, over this rank's images. Count the wait for the device as
        part of this step, not as waiting for data."""
        start_s = time.perf_counter()
        sums = self.sums.read()
        self.train_times.add_wait(time.perf_counter() - start_s)
        return sums

    def _total(self, trainer: L.Trainer) -> dict[str, float]:
        """Return the means of this epoch so far over all ranks. Call on all ranks."""
        self.read_sums()
        return self.sums.total(trainer).means()

    def times(self, trainer: L.Trainer) -> tuple[float, float]:
        """Return (seconds since training began, CPU seconds of all ranks and their loader workers), including the parts
        before a resume. Call on all ranks."""
        cpu_s = self._end[1] if self._end else cpu_seconds(trainer)
        cpu = torch.tensor(cpu_s - self._begin_cpu_s, device=trainer.strategy.root_device)
        total: Any = trainer.strategy.reduce(cpu, reduce_op="sum")  # pyright: ignore[reportUnknownMemberType]
        return self.elapsed_s, self.train_cpu_s + float(total)

    @property
    def elapsed_s(self) -> float:
        """Return the seconds of training measured on this rank, including the parts before a resume."""
        return self.train_s + (self._end[0] if self._end else time.perf_counter()) - self._begin_s

    # -- checkpoints

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._save(trainer)  # a resumed run logs only the steps after this checkpoint
        self._has_saved = True

    def state_dict(self) -> dict[str, Any]:
        """Return the sums over all ranks, so that any number of ranks can continue. Lightning calls this on all
        ranks."""
        assert self._trainer is not None
        train_s, train_cpu_s = self.times(self._trainer)
        self.read_sums()
        return {
            "scores": dict(self.scores),
            "bests": {key: asdict(best) for key, best in self.bests.items()},
            "sums": self.sums.total(self._trainer).numbers(),
            "train_s": train_s,
            "train_cpu_s": train_cpu_s,
            "num_epochs": self.num_epochs,
            "num_begun": self.num_begun,
            "start": self.start,
            "val_step": self.val_step,
            "times": self.train_times.state_dict(),  # rank 0's
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for key, stored in state_dict["bests"].items():
            best = self.bests.setdefault(key, Best(stored["monitor"], stored["mode"]))
            best.value, best.epoch, best.step = stored["value"], stored["epoch"], stored["step"]
            best.loss = stored["loss"]
        self._restored = Sums.of(self._sums_of, state_dict["sums"])
        self.train_times.load_state_dict(state_dict["times"])
        self.scores = {str(name): float(value) for name, value in state_dict["scores"].items()}
        self.train_s, self.train_cpu_s = float(state_dict["train_s"]), float(state_dict["train_cpu_s"])
        self.num_epochs = int(state_dict["num_epochs"])
        self.num_begun, self.start = int(state_dict["num_begun"]), str(state_dict["start"])
        self.val_step = state_dict["val_step"]


def find_log(trainer: L.Trainer) -> TrainLog:
    """Return the trainer's TrainLog. Raises ValueError if it has none."""
    if (log := find_callback(trainer, TrainLog)) is None:
        raise ValueError(
            "the Trainer must have the callback TrainLog, from which this callback reads, got none. "
            "Hint: add imagenet_ddp.callbacks.TrainLog() as the first of the callbacks."
        )
    return log


def of_all(trainer: L.Trainer, epoch: int) -> str:
    """Return the number of an epoch, followed by that of the last one, if there is a limit: 3/90."""
    return f"{epoch}/{trainer.max_epochs}" if trainer.max_epochs not in (None, -1) else str(epoch)


def train_names(means: Mapping[str, float], suffix: str = "") -> dict[str, float]:
    """Return the means under the names by which they are logged."""
    return {f"train/{name}{suffix}": value for name, value in means.items()}
