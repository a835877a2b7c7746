# pyright: reportIncompatibleMethodOverride=false
# Lightning passes the arguments of hooks by position.
"""Define what happens in a training: at a step, at an interval, at a validation, at the end of an epoch, at a stop and
at a failure, in this order.

Lightning calls Checkpoint callbacks after all others. So there are two callbacks: First precedes those of the user,
which find the learning rate and the numbers of a step in place, and Last, a Checkpoint, follows them, so that a
checkpoint contains what they have decided. Both call the parts of a training, each of which is one file. A part may be
missing. The parts with a name in docs/library.md are Lightning callbacks that also work without this file.

What changes the net or the images stays a callback of its own before both, because nothing here depends on it:
WeightAverage, FrozenLayers, RegressionHead and TimeBudget. So does History, between both: a Checkpoint of the user
precedes Last, and its file must contain the row of the epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

import lightning.pytorch as L
from lightning.pytorch.callbacks import Checkpoint

from imagenet_ddp.callbacks.checkpoint import ResumeCheckpoint
from imagenet_ddp.callbacks.core_watch import CoreWatch
from imagenet_ddp.callbacks.graceful_stop import GracefulStop
from imagenet_ddp.callbacks.learning_rate import LearningRate
from imagenet_ddp.callbacks.loop_state import Group, Position, validate_now, validates_next
from imagenet_ddp.callbacks.nonfinite_loss import NonFiniteLoss
from imagenet_ddp.callbacks.progress import Progress
from imagenet_ddp.callbacks.run_files import BadImagesList, BatchSheet, History, LoggedFiles
from imagenet_ddp.callbacks.stalled_step import StalledStep
from imagenet_ddp.callbacks.train_log import TrainLog
from imagenet_ddp.runs.signals import Signals, Stopped

NO_PART: Any = L.Callback()  # does nothing


@dataclass
class Parts:
    """The parts of a training. position: where it is, computed once after each step."""

    stop: GracefulStop
    learning_rate: LearningRate = NO_PART
    train_log: TrainLog = NO_PART
    nonfinite_loss: NonFiniteLoss = NO_PART
    stalled_step: StalledStep = NO_PART
    core_watch: CoreWatch = NO_PART
    batch_sheet: BatchSheet = NO_PART
    progress: Progress = NO_PART
    logged_files: LoggedFiles = NO_PART
    bad_images: BadImagesList = NO_PART
    checkpoint: ResumeCheckpoint = NO_PART
    position: Position = field(default_factory=Position)

    def callbacks(self) -> list[L.Callback]:
        """Return the parts that are callbacks, for loop_state.find_callbacks."""
        values = [getattr(self, each.name) for each in fields(self)]
        return [each for each in values if isinstance(each, L.Callback) and each is not NO_PART]


def in_order(callbacks: Sequence[L.Callback], signals: Signals) -> list[L.Callback]:
    """Return callbacks for a Trainer: the parts among them, in the order of this file, around all others."""
    kinds = {name: kind for name, kind in get_type_hints(Parts).items() if issubclass(kind, L.Callback)}
    found: dict[str, Any] = {}
    others: list[L.Callback] = []
    for callback in callbacks:
        name = next((name for name, kind in kinds.items() if isinstance(callback, kind) and name not in found), None)
        if name is None:
            others.append(callback)
        else:
            found[name] = callback
    parts = Parts(GracefulStop(signals), **found)
    others.sort(key=lambda callback: isinstance(callback, History))  # after those whose metrics it writes
    return [First(parts), *others, Last(parts)]


class First(Group):
    """Do what precedes the callbacks of the user: set the learning rate, and measure."""

    def __init__(self, parts: Parts):
        self.parts, self.members = parts, parts.callbacks()

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.parts.train_log.setup(trainer, pl_module, stage)
        self.parts.stalled_step.setup(trainer, pl_module, stage)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.parts.learning_rate.on_fit_start(trainer, pl_module)
        self.parts.train_log.on_fit_start(trainer, pl_module)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.parts.learning_rate.on_train_start(trainer, pl_module)
        self.parts.train_log.on_train_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.parts.learning_rate.on_train_epoch_start(trainer, pl_module)
        self.parts.train_log.on_train_epoch_start(trainer, pl_module)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *batch: Any) -> None:
        """Begin a step: its batch is on the device."""
        self.parts.learning_rate.on_train_batch_start(trainer, pl_module, *batch)
        self.parts.train_log.on_train_batch_start(trainer, pl_module, *batch)  # the wait for data is over
        self.parts.batch_sheet.on_train_batch_start(trainer, pl_module, *batch)  # the first one of a run

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *step: Any) -> None:
        """Measure a step. Nothing waits for the device but at an interval (trainer.log_every_n_steps), where the means
        go to the loggers, and the losses must be finite."""
        self.parts.position = Position.after_batch(trainer)
        self.parts.train_log.on_train_batch_end(trainer, pl_module, *step)
        self.parts.nonfinite_loss.on_train_batch_end(trainer, pl_module, *step)
        self.parts.stalled_step.on_train_batch_end(trainer, pl_module, *step)
        self.parts.core_watch.on_train_batch_end(trainer, pl_module, *step)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.parts.stalled_step.on_validation_start(trainer, pl_module)
        self.parts.core_watch.on_validation_start(trainer, pl_module)  # its CPU time is not that of steps
        self.parts.train_log.on_validation_start(trainer, pl_module)  # the means of the epoch so far, over all ranks

    def on_validation_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *step: Any) -> None:
        self.parts.train_log.on_validation_batch_end(trainer, pl_module, *step)
        self.parts.stalled_step.on_validation_batch_end(trainer, pl_module, *step)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Measure a validation: its scores, and whether they are the best."""
        self.parts.stalled_step.on_validation_end(trainer, pl_module)
        self.parts.core_watch.on_validation_end(trainer, pl_module)
        self.parts.train_log.on_validation_end(trainer, pl_module)
        self.parts.nonfinite_loss.on_validation_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.parts.train_log.on_train_epoch_end(trainer, pl_module)  # the means of the epoch, over all ranks

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.parts.train_log.on_train_end(trainer, pl_module)
        self.parts.stalled_step.on_train_end(trainer, pl_module)
        self.parts.nonfinite_loss.on_train_end(trainer, pl_module)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Keep a failure, or a stop, for the last lines of the log."""
        self.parts.train_log.on_exception(trainer, pl_module, exception)
        self.parts.stalled_step.on_exception(trainer, pl_module, exception)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.parts.stalled_step.teardown(trainer, pl_module, stage)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self.parts.nonfinite_loss.on_save_checkpoint(trainer, pl_module, checkpoint)  # refuses to save such a state
        self.parts.train_log.on_save_checkpoint(trainer, pl_module, checkpoint)

    # Lightning stores one state for each callback; the names are those of the parts.

    @property
    def state_key(self) -> str:
        return TrainLog.__qualname__

    def state_dict(self) -> dict[str, Any]:
        return self.parts.train_log.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.parts.train_log.load_state_dict(state_dict)


class Last(Checkpoint):
    """Do what follows the callbacks of the user: write lines and files, save, and end the training."""

    def __init__(self, parts: Parts):
        self.parts = parts

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.parts.progress.setup(trainer, pl_module, stage)
        self.parts.checkpoint.setup(trainer, pl_module, stage)
        self.parts.stop.setup(trainer)

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write what is known of the weights before the first step, if all images have been validated."""
        self.parts.progress.on_sanity_check_end(trainer, pl_module)
        self.parts.checkpoint.on_sanity_check_end(trainer, pl_module)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.parts.progress.on_train_start(trainer, pl_module)
        self.parts.logged_files.on_train_start(trainer, pl_module)
        self.parts.checkpoint.on_train_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.parts.stop.begin_epoch()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *step: Any) -> None:
        """End a step. A stop waits for the end of the update, and for the validation that is due there. A training that
        ends here validates its last state first."""
        position, stop = self.parts.position, self.parts.stop
        if self.parts.train_log is not NO_PART:
            self.parts.train_log.after_callbacks()
        self.parts.progress.on_train_batch_end(trainer, pl_module, *step)
        self.parts.logged_files.on_train_batch_end(trainer, pl_module, *step)
        self.parts.checkpoint.on_train_batch_end(trainer, pl_module, *step)  # every_n_steps
        stop.delay(trainer, is_update=position.is_update)
        if position.is_update and not validates_next(trainer):
            if position.is_epoch_over:
                stop.after_last_update(trainer)
            else:
                self._stop_on(stop.after_update(trainer), trainer)
        if position.ends_training(trainer):
            validate_now(trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.parts.checkpoint.on_validation_start(trainer, pl_module)
        self.parts.stop.begin_validation()

    def on_validation_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *batch: Any) -> None:
        self._stop_on(self.parts.stop.before_validation_batch(trainer), trainer, before_validation=True)

    def on_validation_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *step: Any) -> None:
        self.parts.progress.on_validation_batch_end(trainer, pl_module, *step)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """End a validation: show one within an epoch, and save the best weights. At the end of an epoch, one file
        contains both."""
        self.parts.progress.on_validation_end(trainer, pl_module)
        self.parts.bad_images.on_validation_end(trainer, pl_module)
        self.parts.checkpoint.on_validation_end(trainer, pl_module)
        self.parts.stop.end_validation(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """End an epoch: show it, save it, and then stop if a signal has arrived."""
        self.parts.progress.on_train_epoch_end(trainer, pl_module)
        self.parts.bad_images.on_train_epoch_end(trainer, pl_module)
        self.parts.checkpoint.on_train_epoch_end(trainer, pl_module)
        self._stop_on(self.parts.stop.after_epoch(trainer), trainer)

    def _stop_on(self, signal_number: int, trainer: L.Trainer, *, before_validation: bool = False) -> None:
        """Stop on a signal that a rank has received and all ranks know: save this position, and leave the training.
        signal_number: 0 for none. before_validation: the validation of this state is not complete."""
        if not signal_number:
            return
        self.parts.stalled_step.on_train_end(trainer, trainer.lightning_module)  # saving may take long
        if self.parts.checkpoint is not NO_PART:
            self.parts.checkpoint.save_stopped(trainer, before_validation)
        raise Stopped(signal_number, self.parts.stop.lost_node)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.parts.progress.on_train_end(trainer, pl_module)
        self.parts.checkpoint.on_train_end(trainer, pl_module)  # waits until the last file is written

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.parts.logged_files.on_fit_end(trainer, pl_module)  # sends the curves that History has drawn

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """After a failure, or a stop, name the images that could not be read."""
        self.parts.bad_images.on_exception(trainer, pl_module, exception)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self.parts.checkpoint.on_save_checkpoint(trainer, pl_module, checkpoint)  # the position of the training

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self.parts.checkpoint.on_load_checkpoint(trainer, pl_module, checkpoint)
