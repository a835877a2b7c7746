"""Set the learning rate of each step."""

import math
from collections.abc import Callable
from typing import Any

import lightning.pytorch as L

MOST_RATES = 2000  # computed to find the highest
Schedule = Callable[[float], float]  # maps the epochs passed, fractional within an epoch, to a factor


class LearningRate(L.Callback):
    """Set the learning rate of each optimizer group before each step, to its initial rate times the schedule's factor.
    Must precede LearningRateMonitor, which reads the rate in the same hooks.

    spanning: returns the schedule of a run that ends after so many epochs (fractional; infinite without a limit), each
    of so many optimizer steps; both are known only when training starts. say: function that writes a line to the log.
    note: writes one to its file only.
    """

    def __init__(
        self,
        schedule: Schedule | None = None,
        *,
        spanning: Callable[[float, int], Schedule] | None = None,
        say: Callable[[str], None] | None = None,
        note: Callable[[str], None] | None = None,
    ):
        self._schedule: Schedule = schedule or (lambda epochs: 1.0)
        self._spanning, self._say, self._note = spanning, say, note or say
        self._peaks: list[float] = []

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Lightning restores the optimizer of a checkpoint, with the rates stored in it, only after this hook
        self._peaks = [group["lr"] for group in trainer.optimizers[0].param_groups]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._spanning is None:
            return
        steps, epoch, done = int(_steps_per_epoch(trainer)), trainer.current_epoch, trainer.global_step
        # not from global_step, because epochs before a resume may have had another number of steps
        passed = min(-(-(trainer.fit_loop.batch_idx + 1) // trainer.accumulate_grad_batches), steps)
        left = math.inf if trainer.max_epochs in (None, -1) else ((trainer.max_epochs or 0) - epoch) * steps - passed
        if trainer.max_steps >= 0:
            left = min(left, trainer.max_steps - done)
        self._schedule = self._spanning(epoch + (passed + left) / steps, steps)
        if self._say is not None and self._note is not None and left > 0:
            before = trainer.optimizers[0].param_groups[0]["lr"]  # of the last step before a resume

            def rate(step: float) -> float:
                """Return the rate of a step, counted from the first one of this process."""
                return self._peaks[0] * self._schedule(
                    epoch + (passed + step) // steps + (passed + step) % steps / steps
                )

            until = "" if left in (1, math.inf) else f", {rate(left - 1):.3g} in step {done + left}, the last"
            # sampled, because a run may have millions of steps
            last = int(left) if left < math.inf else 100 * steps
            peak_at = max(range(0, last, max(1, last // MOST_RATES)), key=rate)
            is_between = rate(peak_at) > 1.001 * max(rate(0), rate(last - 1))
            peak = f", at most {rate(peak_at):.3g} (step {done + 1 + peak_at})" if is_between else ""
            self._note(f"Learning rate: {rate(0):.3g} in step {done + 1}{peak}{until}.")
            # a jump of the schedule itself is not a changed rate
            if done and abs(rate(-1) - before) > 0.05 * max(rate(-1), before):
                self._say(
                    f"The learning rate jumps from {before:.3g} to {rate(0):.3g}, because optim.*, the batch, "
                    "schedule.* or the end of the training is another one than before the resume. Hint: to keep "
                    "the rate small and constant, set "
                    f"schedule.name=constant optim.lr={before:.3g} optim.reference_batch=null."
                )

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._set(trainer, trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # the rate is the same for all batches of an update, and does not depend on how the update is split
        step = batch_idx // trainer.accumulate_grad_batches
        self._set(trainer, trainer.current_epoch + step / _steps_per_epoch(trainer))

    def _set(self, trainer: L.Trainer, epochs: float) -> None:
        factor = self._schedule(epochs)
        for group, peak in zip(trainer.optimizers[0].param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor


def _steps_per_epoch(trainer: L.Trainer) -> float:
    """Return the number of optimizer steps in an epoch, at least 1; infinite if the loader has no length."""
    batches = trainer.num_training_batches
    return batches if batches == math.inf else max(math.ceil(batches / trainer.accumulate_grad_batches), 1)
