"""What a person sees while it runs: a bar on a terminal, lines in a file or pipe, a summary of each epoch on both."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning.pytorch as L

from imagenet_ddp.callbacks.running_metrics import Figures, RunningMetrics
from imagenet_ddp.runs.log import Log

REDRAW_S = 0.1
COLUMNS = 80  # of a bar


class Progress(L.Callback):
    """On screen and in logs accuracies are percent; in files they are fractions. A terminal gets a bar, and the lines
    go to the log file; a pipe gets the lines. A progress bar of Lightning's takes the place of both: the lines then go
    to the log file alone."""

    def __init__(self, log: Log, meters: RunningMetrics, log_every: int, val_log_every: int, top_k: int):
        self._log, self._meters = log, meters
        self._draws = log.is_terminal  # a bar of its own
        self._log_every, self._val_log_every = log_every, val_log_every
        self._top_k = top_k
        self._drawn = self._began = self._epoch_began = 0.0
        self._before: float | None = None  # epochs when this process began, of which one may have been a part
        self._shown = Figures(0.0, 0.0, 0.0)
        self._val_shown: Figures | None = None  # of this validation

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._began = time.monotonic()
        self._log.below_foreign_bar = trainer.progress_bar_callback is not None
        self._draws = self._log.is_terminal and not self._log.below_foreign_bar

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._log.below_foreign_bar = False

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step, steps = batch_idx + 1, int(trainer.num_training_batches)
        if self._before is None:
            self._before = trainer.current_epoch + batch_idx / steps
        if step == 1 and self._draws:
            self._shown = self._meters.current()[1]
        if self._log_every and (step % self._log_every == 0 or step == steps):
            last, mean = self._meters.current()
            self._shown = mean
            self._write(self._line(trainer, step, steps, last, mean))
        self._draw(self._bar, trainer, step, steps)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._val_shown = None

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
            last, mean = self._meters.validated(pl_module, outputs, batch)
            self._val_shown = mean
            self._write(self._val_line(trainer, step, steps, last, mean))
        self._draw(self._val_bar, trainer, step, steps)

    def _write(self, line: str) -> None:
        (self._log.note if self._log.is_terminal or self._log.below_foreign_bar else self._log.say)(line)

    def _draw(self, bar: Callable[[L.Trainer, int, int], str], trainer: L.Trainer, step: int, steps: int) -> None:
        now = time.monotonic()
        if self._draws and now - self._drawn > REDRAW_S:
            self._drawn = now
            self._log.bar(bar(trainer, step, steps))

    def _line(self, trainer: L.Trainer, step: int, steps: int, last: Figures, mean: Figures) -> str:
        meters, count = self._meters, max(self._meters.num_steps, 1)
        return (
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs} step {step}/{steps}"
            f" | batch {meters.batch_s:.3f} s ({meters.batch_sum_s / count:.3f})"
            f" data {meters.data_s:.3f} s ({meters.data_sum_s / count:.3f})"
            f" | {self._figures(last, mean)}"
            f" | {meters.images_per_s:.1f} images/s | ETA {self._eta(trainer, step, steps)}"
        )

    def _val_line(self, trainer: L.Trainer, step: int, steps: int, last: Figures, mean: Figures) -> str:
        meters, count = self._meters, max(self._meters.num_val_steps, 1)
        whose = f", rank {trainer.global_rank}'s images" if trainer.world_size > 1 else ""
        return (
            f"validation step {step}/{steps}"
            f" | batch {meters.val_batch_s:.3f} s ({meters.val_batch_sum_s / count:.3f})"
            f" | {self._figures(last, mean)} | (mean so far{whose})"
        )

    def _figures(self, last: Figures, mean: Figures) -> str:
        return (
            f"loss {format_loss(last.loss)} ({format_loss(mean.loss)})"
            f" | top-1 {100 * last.top1:.2f} % ({100 * mean.top1:.2f})"
            f" | top-{self._top_k} {100 * last.top5:.2f} % ({100 * mean.top5:.2f})"
        )

    def _bar(self, trainer: L.Trainer, step: int, steps: int) -> str:
        meters = self._meters
        parts = {
            "epoch": f"{trainer.current_epoch + 1}/{trainer.max_epochs}",
            "step": f"{step}/{steps}",
            "speed": f"{meters.images_per_s:.0f} img/s",
            "figures": self._bar_figures(self._shown),
            "wait": f"wait {100 * meters.data_wait_frac:.0f} %",
            "eta": f"ETA {self._eta(trainer, step, steps)}",
        }
        return _fitted(parts, step / steps, optional=("wait", "speed"))

    def _val_bar(self, trainer: L.Trainer, step: int, steps: int) -> str:
        parts = {"what": "validation", "step": f"{step}/{steps}"}
        if self._val_shown is not None:
            parts["figures"] = f"so far {self._bar_figures(self._val_shown)}"
        return _fitted(parts, step / max(steps, 1))

    def _bar_figures(self, figures: Figures) -> str:
        percent = f"top-1 {100 * figures.top1:.1f} % top-{self._top_k} {100 * figures.top5:.1f} %"
        return f"loss {format_loss(figures.loss, 3)} {percent}"

    def _eta(self, trainer: L.Trainer, step: int, steps: int) -> str:
        """Of the whole run, from the mean speed so far, validation included."""
        done = trainer.current_epoch + step / steps - (self._before or 0.0)
        left = (trainer.max_epochs or 0) - trainer.current_epoch - step / steps
        if done <= 0 or left < 0:
            return "?"
        return duration((time.monotonic() - self._began) / done * left)


def format_loss(loss: float, digits: int = 4) -> str:
    return f"{loss:.{digits}f}" if loss < 1e4 else f"{loss:.{digits - 1}e}"


def duration(seconds: float) -> str:
    """0:42, 12:05, 3:10:00, 2d 04:00:00"""
    days, rest = divmod(round(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}d {hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def _fitted(parts: Mapping[str, str], share: float, optional: Sequence[str] = ()) -> str:
    """In COLUMNS, without as many of the optional parts as that takes, the first ones first. What is left over between
    the first part and the others is a bar."""
    names = list(parts)
    for name in optional:
        if sum(len(parts[kept]) + 1 for kept in names) - 1 > COLUMNS:
            names.remove(name)
    first, *others = (parts[name] for name in names)
    width = min(COLUMNS - len(" ".join([first, *others])) - len(" []"), 30)
    full = round(min(share, 1.0) * width)
    bar = ["[" + "#" * full + "-" * (width - full) + "]"] if width >= 4 else []
    return " ".join([first, *bar, *others])[:COLUMNS]
