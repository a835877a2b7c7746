"""Read the position of a training run within an epoch, and set the position at which a resumed training continues."""

import math
from typing import Any, TypeVar

import lightning.pytorch as L

_Callback = TypeVar("_Callback", bound=L.Callback)


def find_callback(trainer: L.Trainer, kind: type[_Callback]) -> _Callback | None:
    """Return the trainer's first callback of this class; None if there is none."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return next((callback for callback in callbacks if isinstance(callback, kind)), None)


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


# The layout of checkpoint["loops"] is private to Lightning, but there is no public way to resume within an epoch. The
# version of Lightning is therefore bounded, and tests/callbacks/test_exact_resume.py tests the layout. In each counter,
# `ready` and `started` count the items that have begun, `processed` and `completed` those that have ended. If the two
# differ, Lightning concludes that the run was interrupted.


def set_batches(loops: dict[str, Any], batches: int, *, keep_total: bool = False) -> None:
    """Mark this many batches of the epoch as done. keep_total: leave the count of the whole run unchanged."""
    progress = loops["epoch_loop.batch_progress"]
    total = progress["total"]["ready"] - (0 if keep_total else progress["current"]["ready"] - batches)
    for part, count in (("current", batches), ("total", total)):
        progress[part] = dict.fromkeys(("ready", "started", "processed", "completed"), count)
    progress["is_last_batch"] = False


def begin_validation(loops: dict[str, Any]) -> None:
    """Mark the validation as begun, so that Lightning completes it before it continues the training."""
    progress = loops["epoch_loop.val_loop.batch_progress"]
    for part in ("total", "current"):
        progress[part] = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
    progress["is_last_batch"] = False


def set_epochs(loops: dict[str, Any], epochs: int, *, begun: bool = False) -> None:
    """Mark this many epochs as done. begun: whether the next epoch is partly trained."""
    progress = loops["epoch_progress"]
    for part in ("current", "total"):
        progress[part] = {
            "ready": epochs + begun, "started": epochs + begun, "processed": epochs, "completed": epochs,
        }  # fmt: skip
