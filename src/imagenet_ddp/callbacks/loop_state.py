"""Read the position of a training run within an epoch, describe it in a checkpoint, and continue at that image of the
epoch, on any number of devices."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import lightning.pytorch as L

from imagenet_ddp.data.sampler import BatchSampler
from imagenet_ddp.errors import ConfigError

_Callback = TypeVar("_Callback", bound=L.Callback)


class Group(L.Callback):
    """A callback that calls other callbacks, its members, which are not in Trainer.callbacks."""

    members: list[L.Callback]


def find_callback(trainer: L.Trainer, kind: type[_Callback]) -> _Callback | None:
    """Return the trainer's first callback of this class; None if there is none."""
    return next(iter(find_callbacks(trainer, kind)), None)


def find_callbacks(trainer: L.Trainer, kind: type[_Callback]) -> list[_Callback]:
    """Return the trainer's callbacks of this class, including members of a Group."""
    callbacks: list[Any] = cast("Any", trainer).callbacks
    members: list[Any] = [member for each in callbacks if isinstance(each, Group) for member in each.members]
    return [callback for callback in (*members, *callbacks) if isinstance(callback, kind)]


def log_interval(trainer: L.Trainer) -> int:
    """Return trainer.log_every_n_steps, or Lightning's default of 50 where 0 switches logging off."""
    return trainer.log_every_n_steps or 50  # type: ignore[attr-defined]


def validates_start(trainer: L.Trainer) -> bool:
    """Return whether the validation that is running is that of the weights before the first step, on all images:
    Lightning's sanity check with trainer.num_sanity_val_steps=-1. Its scores count as those of epoch 0."""
    return bool(trainer.sanity_checking and trainer.num_sanity_val_steps == math.inf)  # type: ignore[attr-defined]


def is_epoch_over(trainer: L.Trainer) -> bool:
    """Return whether all batches of the epoch have been trained. An epoch can end before that through
    trainer.max_steps, trainer.max_time, or a callback that sets trainer.should_stop."""
    return trainer.fit_loop.batch_idx + 1 >= trainer.num_training_batches


def is_update(trainer: L.Trainer) -> bool:
    """Return whether the last batch completed an update of the weights. If training stops within an update, the
    accumulated gradients are lost."""
    return (trainer.fit_loop.batch_idx + 1) % trainer.accumulate_grad_batches == 0 or is_epoch_over(trainer)


def is_reached(count: float, limit: float | None) -> bool:
    """Return whether a number of epochs or steps is that of trainer.max_epochs or trainer.max_steps. None or -1 means
    that there is no limit."""
    return limit is not None and 0 <= limit <= count


def is_stopping(trainer: L.Trainer, epochs: int) -> bool:
    """Return whether a callback ends the training after this many epochs, which Lightning lets it do from
    trainer.min_epochs and trainer.min_steps on."""
    has_least = epochs >= (trainer.min_epochs or 0) and trainer.global_step >= (trainer.min_steps or 0)
    return trainer.should_stop and has_least


@dataclass(frozen=True)
class Position:
    """Where a training is after a batch. step: optimizer steps so far. is_update: result of is_update()."""

    step: int = 0
    is_update: bool = True
    is_epoch_over: bool = False

    @classmethod
    def after_batch(cls, trainer: L.Trainer) -> "Position":
        return cls(trainer.global_step, is_update(trainer), is_epoch_over(trainer))

    def ends_training(self, trainer: L.Trainer) -> bool:
        """Return whether the training ends here, by what the callbacks have decided so far."""
        if not self.is_update:
            return False
        epochs = trainer.current_epoch + self.is_epoch_over
        is_last = is_reached(epochs, trainer.max_epochs) or is_reached(self.step, trainer.max_steps)
        return is_last or is_stopping(trainer, epochs)


def validates_next(trainer: L.Trainer) -> bool:
    """Return whether a validation follows the last batch."""
    every, every_n_epochs = trainer.val_check_batch, trainer.check_val_every_n_epoch
    if every in (None, math.inf):
        return False
    if every_n_epochs is None:  # batches are then counted across epochs
        is_due = (trainer.fit_loop.total_batch_idx + 1) % every == 0
    else:
        is_due = (trainer.current_epoch + 1) % every_n_epochs == 0 and (trainer.fit_loop.batch_idx + 1) % every == 0
    return is_due and trainer.enable_validation  # last, because Lightning computes this on each access


def epochs_validated(trainer: L.Trainer) -> float:
    """Return the epochs trained before the validation that has just ended: 0.25 for one after a quarter of the first
    epoch. One at the end of an epoch, or of the training, is that of the whole epoch."""
    if is_epoch_over(trainer) or Position.after_batch(trainer).ends_training(trainer):
        return trainer.current_epoch + 1
    return round(trainer.current_epoch + (trainer.fit_loop.batch_idx + 1) / trainer.num_training_batches, 4)


def validate_now(trainer: L.Trainer) -> None:
    """Make Lightning validate after the last batch of the training, whenever validations are due otherwise."""
    trainer._val_check_time_interval = None  # type: ignore[assignment]  # else only this time counts
    trainer.check_val_every_n_epoch = 1
    trainer.val_check_batch = trainer.fit_loop.batch_idx + 1


# The layout of checkpoint["loops"] is private to Lightning, but there is no public way to resume within an epoch. The
# version of Lightning is therefore bounded, and tests/callbacks/test_exact_resume.py tests the layout. In each counter,
# `ready` and `started` count the items that have begun, `processed` and `completed` those that have ended. If the two
# differ, Lightning concludes that the run was interrupted.


def _set_batches(loops: dict[str, Any], batches: int, *, keep_total: bool = False) -> None:
    """Mark this many batches of the epoch as done. keep_total: leave the count of the whole run unchanged."""
    progress = loops["epoch_loop.batch_progress"]
    total = progress["total"]["ready"] - (0 if keep_total else progress["current"]["ready"] - batches)
    for part, count in (("current", batches), ("total", total)):
        progress[part] = dict.fromkeys(("ready", "started", "processed", "completed"), count)
    progress["is_last_batch"] = False


def _begin_validation(loops: dict[str, Any]) -> None:
    """Mark the validation as begun, so that Lightning completes it before it continues the training."""
    progress = loops["epoch_loop.val_loop.batch_progress"]
    for part in ("total", "current"):
        progress[part] = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
    progress["is_last_batch"] = False


def _end_validation(loops: dict[str, Any]) -> None:
    """Mark no validation as begun. One that was completed after a resume leaves its counts one apart."""
    progress = loops["epoch_loop.val_loop.batch_progress"]
    for part in ("total", "current"):
        progress[part] = dict.fromkeys(progress[part], progress[part]["ready"])


def _set_epochs(loops: dict[str, Any], epochs: int, *, begun: bool = False) -> None:
    """Mark this many epochs as done. begun: whether the next epoch is partly trained."""
    progress = loops["epoch_progress"]
    for part in ("current", "total"):
        progress[part] = {
            "ready": epochs + begun, "started": epochs + begun, "processed": epochs, "completed": epochs,
        }  # fmt: skip


class ResumableData(Protocol):
    """The interface of a data module whose epochs can continue at any image. ImageDataModule implements it."""

    train_sampler: BatchSampler | None  # sampler of the current train_dataloader()

    @property
    def num_train_images(self) -> int: ...

    @property
    def train_step_images(self) -> int:
        """Return the number of images in one batch over all ranks."""
        ...

    def start_at(self, epoch: int, image: int, step: int) -> None:
        """Skip the first `image` images of this epoch, which have been trained on in `step` steps. Must be called
        before the loaders are made."""
        ...


def describe(trainer: L.Trainer, loops: dict[str, Any], *, before_validation: bool) -> dict[str, Any]:
    """Return the kind of the position (epoch_end, mid_epoch, before_validation or interrupted), the epoch, the number
    of its images already trained on, the images per step, and whether the epoch has no more steps. Also correct
    Lightning's own counters in `loops`, which is checkpoint["loops"]["fit_loop"].

    before_validation: whether the validation that follows the batches trained so far still has to be run. The kind is
    interrupted if another callback writes the checkpoint after an error, possibly within an update or a validation.
    """
    epochs, batches = loops["epoch_progress"]["current"], loops["epoch_loop.batch_progress"]["current"]["ready"]
    epoch = max(epochs["started"] - 1, 0)
    data = _resumable(trainer)
    sampler = data.train_sampler if data else None
    in_batch_end = loops["epoch_loop.batch_progress"]["current"]["completed"] < batches
    if trainer.interrupted:
        kind = "interrupted"
    elif before_validation or (in_batch_end and validates_next(trainer)):
        kind = "before_validation"
        _set_batches(loops, batches)
        _begin_validation(loops)
    elif epochs["processed"] == epochs["started"] and is_epoch_over(trainer):
        kind = "epoch_end"
    else:
        kind = "mid_epoch"
        # the checkpoint has no gradients of an incomplete update, so the batches of this update are trained again
        if sampler and not is_epoch_over(trainer):
            batches = max(batches - batches % trainer.accumulate_grad_batches, sampler.steps_before(epoch))
        _set_batches(loops, batches)
        _set_epochs(loops, epoch, begun=True)
    return {
        "kind": kind,
        "epoch": epoch,
        "images": sampler.images_after(epoch, batches) if sampler else 0,
        "step_images": data.train_step_images if data else 0,
        "is_over": is_epoch_over(trainer),
    }


def continue_at(trainer: L.Trainer, loops: dict[str, Any], position: Mapping[str, Any], *, only_validate: bool) -> None:
    """Make Lightning and the data module continue at a position returned by describe(). only_validate: nothing is left
    to train, but this state has no validation yet; call validate_now() when the training starts."""
    if position["kind"] == "interrupted":
        raise ConfigError(
            f"{trainer.ckpt_path} must be written between two steps to be resumed, but was written after an error had "
            "ended the training (save_on_exception). Hint: resume from the last.ckpt of that run."
        )
    if only_validate:
        _set_epochs(loops, position["epoch"], begun=True)
        _set_batches(loops, loops["epoch_loop.batch_progress"]["current"]["ready"], keep_total=True)
        _begin_validation(loops)
    elif position["kind"] == "epoch_end":
        # with trainer.max_steps, Lightning mistakes a finished epoch for an interrupted one
        _end_validation(loops)
        _set_epochs(loops, position["epoch"] + 1)
        _set_batches(loops, 0, keep_total=True)
        return
    if (data := _resumable(trainer)) is None:
        return
    batches = loops["epoch_loop.batch_progress"]["current"]["ready"]
    step_images = data.train_step_images
    steps = -(-data.num_train_images // step_images)
    if position["step_images"] != step_images:
        # count in steps of the new size, so that the epoch still ends after its usual number of steps
        batches = steps - -(-(data.num_train_images - position["images"]) // step_images)
        _set_batches(loops, batches, keep_total=True)
    limit = trainer.limit_train_batches
    limit = min(limit, steps) if isinstance(limit, int) else int(limit * steps)
    # with a lower limit or larger steps than before, only the validation of this epoch may be left
    if batches > limit or (batches == limit and not position["is_over"]):
        batches = limit
        _set_batches(loops, batches, keep_total=True)
        _begin_validation(loops)
    data.start_at(position["epoch"], position["images"], batches)


def _resumable(trainer: L.Trainer) -> ResumableData | None:
    data = getattr(trainer, "datamodule", None)
    return data if hasattr(data, "start_at") else None
