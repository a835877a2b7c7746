"""Set the learning rate of each step."""

import math
from collections.abc import Callable
from typing import Any

import lightning.pytorch as L

Schedule = Callable[[float], float]  # maps the epochs passed, fractional within an epoch, to a factor


class LearningRate(L.Callback):
    """Set the learning rate of each optimizer group before each step, to its initial rate times the schedule's factor.
    Must be the first callback, because LearningRateMonitor reads the rate in the same hooks.

    spanning: returns the schedule of a run that ends after so many epochs (fractional; infinite without a limit), each
    of so many optimizer steps; both are known only when training starts. say: function that writes a line to the log.
    """

    def __init__(
        self,
        schedule: Schedule | None = None,
        *,
        spanning: Callable[[float, int], Schedule] | None = None,
        say: Callable[[str], None] | None = None,
    ):
        self._schedule = schedule or (lambda epochs: 1.0)
        self._spanning, self._say = spanning, say
        self._peaks: list[float] = []

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Lightning restores the optimizer of a checkpoint, with the rates stored in it, only after this hook
        self._peaks = [group["lr"] for group in trainer.optimizers[0].param_groups]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._spanning is None:
            return
        steps = max(math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches), 1)
        done, epoch = trainer.global_step, trainer.current_epoch
        begin = epoch + min(max(done - epoch * steps, 0) / steps, 1)
        end = math.inf if trainer.max_epochs in (None, -1) else float(trainer.max_epochs or 0)
        if trainer.max_steps >= 0:
            end = min(end, begin + (trainer.max_steps - done) / steps)
        self._schedule = self._spanning(end, steps)
        before = trainer.optimizers[0].param_groups[0]["lr"] if done else None  # that of the last step
        if self._say is not None and end > begin:
            self._report(begin, end, steps, done, before)

    def _report(self, begin: float, end: float, steps: int, done: int, before: float | None) -> None:
        """Write the rates of the first and last step, and whether the rate jumps from that before a resume. begin, end:
        in epochs. done: the steps before this run."""
        assert self._say is not None
        peak = self._peaks[0]
        first, last = peak * self._schedule(begin), peak * self._schedule(max(end - 1 / steps, begin))
        until = "" if end == math.inf else f"; of the last, step {done + round((end - begin) * steps)}: {last:.3g}"
        self._say(f"Learning rate of the first step, step {done + 1}: {first:.3g}{until}.")
        # at a step where the schedule of this run has a jump of its own, the rate before it is no other
        planned = peak * self._schedule(max(begin - 1 / steps, 0))
        if before is not None and abs(planned - before) > 0.05 * max(planned, before):
            self._say(
                f"The learning rate jumps from {before:.3g} to {first:.3g}, because the schedule is another one than "
                "before the resume: it now ends with this run. Hint: for a constant rate, add schedule.name=constant "
                f"schedule.warmup_epochs=0 optim.scaling=none optim.lr={before:.3g}."
            )

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._set(trainer, trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # the rate is the same for all batches of an update, so it does not depend on how the update is split
        first = batch_idx - batch_idx % trainer.accumulate_grad_batches
        self._set(trainer, trainer.current_epoch + first / trainer.num_training_batches)

    def _set(self, trainer: L.Trainer, epochs: float) -> None:
        factor = self._schedule(epochs)
        for group, peak in zip(trainer.optimizers[0].param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
