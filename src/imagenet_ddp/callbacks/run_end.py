"""Limit the time of a training, and say which option has ended it."""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from imagenet_ddp.callbacks.loop_state import find_callbacks, is_reached, is_stopping
from imagenet_ddp.callbacks.train_log import find_log

# Why Lightning's EarlyStopping stops -> its argument that decides it.
ARGUMENTS = {
    EarlyStoppingReason.PATIENCE_EXHAUSTED: "patience",
    EarlyStoppingReason.STOPPING_THRESHOLD: "stopping_threshold",
    EarlyStoppingReason.DIVERGENCE_THRESHOLD: "divergence_threshold",
    EarlyStoppingReason.NON_FINITE_METRIC: "check_finite",
}


class TimeLimit(L.Callback):
    """End the training after `limit_s` seconds of it, including the parts before a resume. GracefulStop asks for the
    time, so that all ranks end at the same step, and none waits for another in every step, as Lightning's Timer does.

    key: the option that sets the limit. has_passed: set on all ranks when the time of one is over.
    """

    key = "trainer.max_time"

    def __init__(self, limit_s: float):
        self.limit_s = limit_s
        self.has_passed = False

    def elapsed_s(self, trainer: L.Trainer) -> float:
        return find_log(trainer).elapsed_s

    def stored_s(self, checkpoint: Mapping[str, Any]) -> float:
        """Return the seconds that count on a resume, when the checkpoint is not loaded yet."""
        return checkpoint["callbacks"]["TrainLog"]["train_s"]


def ended_by(trainer: L.Trainer, num_epochs: int) -> str | None:
    """Return the option that has ended the training after this many whole epochs, such as trainer.max_steps, or
    callbacks if a callback of the user's has; None if the training goes on."""
    limits = find_callbacks(trainer, TimeLimit)
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        return "trainer.fast_dev_run"
    if is_reached(num_epochs, trainer.max_epochs):
        # a time budget may have chosen fewer epochs than trainer.max_epochs
        return next((limit.key for limit in limits if getattr(limit, "has_chosen_epochs", False)), "trainer.max_epochs")
    if is_reached(trainer.global_step, trainer.max_steps):
        return "trainer.max_steps"
    if not is_stopping(trainer, num_epochs):
        return None
    if passed := [limit.key for limit in limits if limit.has_passed]:
        return passed[0]
    stopped = [
        f"{getattr(each, 'config_key', 'callbacks')}.{ARGUMENTS[each.stopping_reason]}"
        for each in find_callbacks(trainer, EarlyStopping)
        if each.stopping_reason in ARGUMENTS
    ]
    return stopped[0] if stopped else "callbacks"
