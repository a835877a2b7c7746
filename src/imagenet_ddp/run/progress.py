"""What a person sees while it runs: a bar on a terminal, lines in a file or pipe, a summary of each epoch on both."""

import time
from typing import Any

import lightning.pytorch as L

from imagenet_ddp.run.log import Log
from imagenet_ddp.run.meters import Figures, Meters

REDRAW_S = 0.1


class Progress(L.Callback):
    """On screen and in logs accuracies are percent; in files they are fractions. A terminal gets a bar, and the lines
    go to the log file; a pipe gets the lines."""

    def __init__(self, log: Log, meters: Meters, log_every: int, val_log_every: int, top_k: int):
        self._log, self._meters = log, meters
        self._log_every, self._val_log_every = log_every, val_log_every
        self._top_k = top_k
        self._drawn = self._began = self._epoch_began = 0.0
        self._before: float | None = None  # epochs when this process began, of which one may have been a part
        self._shown = Figures(0.0, 0.0, 0.0)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._began = time.monotonic()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step, steps = batch_idx + 1, int(trainer.num_training_batches)
        if self._before is None:
            self._before = trainer.current_epoch + batch_idx / steps
        if step == 1 and self._log.is_terminal:
            self._shown = self._meters.current()[1]
        if self._log_every and (step % self._log_every == 0 or step == steps):
            last, mean = self._meters.current()
            self._shown = mean
            line = self._line(trainer, step, steps, last, mean)
            (self._log.note if self._log.is_terminal else self._log.say)(line)
        now = time.monotonic()
        if self._log.is_terminal and now - self._drawn > REDRAW_S:
            self._drawn = now
            self._log.bar(self._bar(trainer, step, steps))

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        limits = trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
        step, steps = batch_idx + 1, int(sum(limits))
        if step % self._val_log_every == 0:
            line = f"validation step {step}/{steps}"
            (self._log.note if self._log.is_terminal else self._log.say)(line)
        if self._log.is_terminal and time.monotonic() - self._drawn > REDRAW_S:
            self._drawn = time.monotonic()
            self._log.bar(f"validation {_blocks(step / max(steps, 1), 30)} {step}/{steps}")

    def _line(self, trainer: L.Trainer, step: int, steps: int, last: Figures, mean: Figures) -> str:
        meters, count = self._meters, max(self._meters.num_steps, 1)
        return (
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs} step {step}/{steps}"
            f" | batch {meters.batch_s:.3f} s ({meters.batch_sum_s / count:.3f})"
            f" data {meters.data_s:.3f} s ({meters.data_sum_s / count:.3f})"
            f" | loss {loss_words(last.loss)} ({loss_words(mean.loss)})"
            f" | top-1 {100 * last.top1:.2f} % ({100 * mean.top1:.2f})"
            f" | top-{self._top_k} {100 * last.top5:.2f} % ({100 * mean.top5:.2f})"
            f" | {meters.images_per_s:.1f} images/s | ETA {self._eta(trainer, step, steps)}"
        )

    def _bar(self, trainer: L.Trainer, step: int, steps: int) -> str:
        """At most 80 columns."""
        meters = self._meters
        return (
            f"{trainer.current_epoch + 1}/{trainer.max_epochs} {_blocks(step / steps, 10)} {step}/{steps}"
            f" {meters.images_per_s:.0f} img/s loss {self._shown.loss:.3f} top-1 {100 * self._shown.top1:.1f} %"
            f" wait {100 * meters.data_wait_frac:.0f} % ETA {self._eta(trainer, step, steps)}"
        )[:80]

    def _eta(self, trainer: L.Trainer, step: int, steps: int) -> str:
        """Of the whole run, from the mean speed so far, validation included."""
        done = trainer.current_epoch + step / steps - (self._before or 0.0)
        left = (trainer.max_epochs or 0) - trainer.current_epoch - step / steps
        if done <= 0 or left < 0:
            return "?"
        return duration((time.monotonic() - self._began) / done * left)


def loss_words(loss: float) -> str:
    return f"{loss:.4f}" if loss < 1e4 else f"{loss:.3e}"


def duration(seconds: float) -> str:
    """0:42, 12:05, 3:10:00, 2d 04:00:00"""
    days, rest = divmod(round(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}d {hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def _blocks(share: float, width: int) -> str:
    full = round(min(share, 1.0) * width)
    return "[" + "#" * full + "-" * (width - full) + "]"
