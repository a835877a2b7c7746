"""Show the progress of a training run: a live view on a terminal, or plain lines in a file or pipe."""

import math
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import lightning.pytorch as L
import torch

from imagenet_ddp.callbacks.history import History
from imagenet_ddp.callbacks.loop_state import find_callback, is_epoch_over, validates_start
from imagenet_ddp.callbacks.scores import Best, Means
from imagenet_ddp.callbacks.train_log import TrainLog, find_log
from imagenet_ddp.runs import terminal_table
from imagenet_ddp.runs.log import Log
from imagenet_ddp.system.text import duration, format_loss, percent

if TYPE_CHECKING:
    from rich.console import RenderableType

REDRAW_S = 0.1
COLUMNS = 80
BAR_COLUMNS = 10  # columns that optional figures leave to the bar
SPARK_COLUMNS = 16
SUMMARISED = ("train/loss", "train/top1")  # training metrics shown in an epoch's line


class Progress(L.Callback):
    """Report the progress of a training run, with accuracies in percent.

    On a terminal, show a table of the epochs and, below it, sparklines, memory use and a progress bar. The lines about
    steps then go to the log file only. In a pipe or file, print these lines. If the trainer has a progress bar of
    Lightning's, it replaces the live view, and the lines go to the log file.

    log: receives the lines; None prints them to rank 0's standard output. The lines about training and validation steps
    (every trainer.log_every_n_steps-th and val_log_every_n_steps-th step) require the images that TrainLog counts. With
    other modules, there is one line per epoch, made from trainer.callback_metrics. Requires TrainLog.
    """

    _train_log: TrainLog  # set in setup()

    def __init__(
        self,
        log: Log | None = None,
        *,
        val_log_every_n_steps: int | None = None,
        monitor: str = "val/top1",
        mode: str = "max",
    ):
        self.run_log = log  # not named `log`, because Lightning overwrites that attribute
        self._best = Best(monitor, mode)
        self._draws = False  # whether to draw the live view
        self._log_every, self._val_log_every = 0, val_log_every_n_steps or 100
        self._has_top5 = True
        self._drawn_s = self._start_s = 0.0
        self._start_epoch: float | None = None  # epochs trained before this process, fractional
        self._shown: Means | None = None  # means of this epoch shown in the bar
        self._val_shown: Means | None = None  # means of this validation shown in the bar
        self._rows: list[dict[str, Any]] = []  # one per epoch, as in metrics.csv
        self._num_rows_shown = 0

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.run_log = self.run_log or Log(None, trainer.global_rank)
        self._train_log = find_log(trainer)
        self._best = self._train_log.track(self._best)
        self._log_every = int(trainer.log_every_n_steps)  # type: ignore[attr-defined]
        num_classes = getattr(getattr(pl_module, "top1", None), "num_classes", None)
        self._has_top5 = num_classes is None or num_classes > 5  # else it is always 100 %

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if validates_start(trainer):
            assert self.run_log is not None
            scores = self._scores(self._train_log.scores)
            self.run_log.say(f"epoch 0/{trainer.max_epochs} ({self._train_log.start}): val {scores}")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert self.run_log is not None
        self._start_s = time.monotonic()
        self.run_log.has_other_bar = trainer.progress_bar_callback is not None
        self._draws = self.run_log.is_terminal and not self.run_log.has_other_bar
        history = find_callback(trainer, History)
        self._rows = list(history.rows) if history is not None else []  # earlier rows of a resumed run
        self._num_rows_shown = 0

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert self.run_log is not None
        self.run_log.has_other_bar = False

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step, steps = batch_idx + 1, int(trainer.num_training_batches)
        if self._start_epoch is None:
            self._start_epoch = trainer.current_epoch + batch_idx / steps
        if self._train_log.counts_images:
            if step == 1 and self._draws:
                self._shown = self._train_log.current()[1]
            if self._log_every and (step % self._log_every == 0 or step == steps):
                last, self._shown = self._train_log.current()
                self._write(self._line(trainer, step, steps, last, self._shown))
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
        if self._train_log.counts_images and step % self._val_log_every == 0:
            last, self._val_shown = self._train_log.validated(pl_module, outputs, batch)
            self._write(self._val_line(trainer, step, steps, last, self._val_shown))
        self._draw(self._val_bar, trainer, step, steps)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert self.run_log is not None
        parts = [f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"]
        if not is_epoch_over(trainer):
            parts[0] += f" (ended after {trainer.fit_loop.batch_idx + 1} of {trainer.num_training_batches} steps)"
        train = {name: float(value) for name, value in trainer.callback_metrics.items() if name in SUMMARISED}
        parts[0] += f": train {self._scores(train)}"
        if scores := self._train_log.scores:
            parts += [f"val {self._scores(scores)}"]
            if (value := self._best.value) is not None:
                parts += [f"best {self._scores({self._best.monitor: value}) or f'{self._best.monitor} {value:.4g}'}"]
        if self._train_log.counts_images:
            times = self._train_log.train_times.epoch
            parts += [f"{times.images_per_s:.1f} images/s, data wait {percent(times.data_wait_frac, 1)}"]
        self.run_log.say(" | ".join(parts), on_screen=self._row(trainer, train) if self._draws else None)

    def _row(self, trainer: L.Trainer, train: Mapping[str, float]) -> str:
        """Return the epoch's row of the table on a terminal, preceded by the column titles at the start and every 20
        rows."""
        scores, times = self._train_log.scores, self._train_log.train_times.epoch
        values: dict[str, Any] = {"epoch": trainer.current_epoch + 1, **train, **scores}
        values |= {"images_per_s": times.images_per_s, "data_wait_frac": times.data_wait_frac}
        values["train_s"] = self._train_log.elapsed_s
        self._rows = [*(row for row in self._rows if row["epoch"] < values["epoch"]), values]
        titles = [terminal_table.head(has_top5=self._has_top5)] if self._num_rows_shown % 20 == 0 else []
        self._num_rows_shown += 1
        is_best = bool(scores) and self._best.epoch == values["epoch"]
        line = terminal_table.row(values, trainer.max_epochs, is_best=is_best, has_top5=self._has_top5)
        return "\n".join([*titles, line])

    def _scores(self, scores: Mapping[str, float]) -> str:
        """Format the scores, as in "loss 2.3026 top-1 12.00 % top-5 50.00 %"."""
        named = {name.rpartition("/")[2]: value for name, value in scores.items()}
        words = [f"loss {format_loss(named['loss'])}"] if "loss" in named else []
        for name, k in self._accuracies():
            words += [f"top-{k} {percent(named[name])}"] if name in named else []
        return " ".join(words)

    def _accuracies(self) -> list[tuple[str, int]]:
        """Return (name, its k) of each accuracy that is shown."""
        return [("top1", 1), ("top5", 5)][: 1 + self._has_top5]

    def _write(self, line: str) -> None:
        assert self.run_log is not None
        (self.run_log.note if self.run_log.is_terminal or self.run_log.has_other_bar else self.run_log.say)(line)

    def _draw(self, bar: Callable[[L.Trainer, int, int], str], trainer: L.Trainer, step: int, steps: int) -> None:
        now = time.monotonic()
        if self._draws and now - self._drawn_s > REDRAW_S:
            assert self.run_log is not None
            self._drawn_s = now
            self.run_log.draw(self._view(bar(trainer, step, steps), trainer.strategy.root_device))

    def _view(self, bar: str, device: torch.device) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        lines = [
            f"{title:<5}  {_spark(self._rows, f'train/{name}')}  {_spark(self._rows, f'val/{name}')}"
            for name, title in (("loss", "loss"), ("top1", "top-1"))
            if self._rows
        ]
        lines += [f"memory {_memory(device)}", bar]
        styles = ["green"] * (len(lines) - 2) + ["dim", "bold"]
        texts = zip(lines, styles, strict=True)
        return Group(*(Text(line, style, no_wrap=True, overflow="crop") for line, style in texts))

    def _line(self, trainer: L.Trainer, step: int, steps: int, last: Means, mean: Means) -> str:
        now, epoch = self._train_log.train_times.last, self._train_log.train_times.epoch
        count = max(epoch.steps, 1)
        return (
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs} step {step}/{steps}"
            f" | batch {now.batch_s:.3f} s ({epoch.batch_s / count:.3f})"
            f" data {now.data_s:.3f} s ({epoch.data_s / count:.3f})"
            f" | {self._means(last, mean)}"
            f" | {epoch.images_per_s:.1f} images/s | ETA {self._eta(trainer, step, steps)}"
        )

    def _val_line(self, trainer: L.Trainer, step: int, steps: int, last: Means, mean: Means) -> str:
        now, validation = self._train_log.val_times.last, self._train_log.val_times.epoch
        owner = f", rank {trainer.global_rank}'s images" if trainer.world_size > 1 else ""
        return (
            f"validation step {step}/{steps}"
            f" | batch {now.batch_s:.3f} s ({validation.batch_s / max(validation.steps, 1):.3f})"
            f" | {self._means(last, mean)} | (mean so far{owner})"
        )

    def _means(self, last: Means, mean: Means) -> str:
        words = [f"loss {format_loss(last.loss)} ({format_loss(mean.loss)})"]
        for name, k in self._accuracies():
            words.append(f"top-{k} {percent(getattr(last, name))} ({100 * getattr(mean, name):.2f})")
        return " | ".join(words)

    def _bar(self, trainer: L.Trainer, step: int, steps: int) -> str:
        parts = {"epoch": f"{trainer.current_epoch + 1}/{trainer.max_epochs}", "step": f"{step}/{steps}"}
        if self._shown is not None:
            times = self._train_log.train_times.epoch
            parts["speed"] = f"{times.images_per_s:.0f} img/s"
            parts |= self._bar_means(self._shown)
            parts["wait"] = f"wait {100 * times.data_wait_frac:.0f} %"
        parts["eta"] = f"ETA {self._eta(trainer, step, steps)}"
        return _fit_columns(parts, step / steps, optional=("top5", "wait", "speed"))

    def _val_bar(self, trainer: L.Trainer, step: int, steps: int) -> str:
        parts = {"what": "validation", "step": f"{step}/{steps}"}
        if self._val_shown is not None:
            parts |= {"mean": "so far", **self._bar_means(self._val_shown)}
        return _fit_columns(parts, step / max(steps, 1), optional=("top5",))

    def _bar_means(self, means: Means) -> dict[str, str]:
        tops = {name: f"top-{k} {percent(getattr(means, name), 1)}" for name, k in self._accuracies()}
        return {"loss": f"loss {format_loss(means.loss, 3)}", **tops}

    def _eta(self, trainer: L.Trainer, step: int, steps: int) -> str:
        """Estimate the time left in the whole run from the mean speed so far, including validation."""
        at = trainer.current_epoch + step / steps
        done = at - (self._start_epoch or 0.0)
        left = (trainer.max_epochs or 0) - at
        if trainer.max_steps >= 0 and trainer.global_step:  # the run may end before its last epoch
            until = max(trainer.max_steps - trainer.global_step, 0) * at / trainer.global_step
            left = until if (trainer.max_epochs or -1) < 0 else min(left, until)
        if done <= 0 or left < 0:
            return "?"
        return duration((time.monotonic() - self._start_s) / done * left)


def _spark(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Format one metric: its split, a sparkline and the last value, as in "train ▁▂▄▆▇█ 89.46 %"."""
    values = [float(row.get(name, math.nan)) for row in rows]
    last = next((value for value in reversed(values) if not math.isnan(value)), None)
    text = "-" if last is None else format_loss(last) if name.endswith("loss") else percent(last)
    return f"{name.partition('/')[0]:<5} {terminal_table.sparkline(values, SPARK_COLUMNS):<{SPARK_COLUMNS}} {text:>9}"


def _memory(device: torch.device) -> str:
    """Format the peak memory of this process so far, without waiting for the device."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        return f"{torch.cuda.max_memory_reserved(device) / 2**30:.1f} of {total / 2**30:.0f} GiB of {device}"
    unit = 1 if sys.platform == "darwin" else 1024  # bytes per unit of ru_maxrss
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30:.1f} GiB"


def _fit_columns(parts: Mapping[str, str], share: float, optional: Sequence[str] = ()) -> str:
    """Join the parts into one line of at most COLUMNS characters. If they do not fit, drop as few optional parts as
    possible, in the order of `optional`. A bar, for which BAR_COLUMNS are reserved, fills the space after the first
    part and shows `share`, 0 to 1."""
    names = list(parts)
    for name in optional:
        if name in names and _bar_width(parts[each] for each in names) < BAR_COLUMNS:
            names.remove(name)
    first, *others = (parts[name] for name in names)
    width = min(_bar_width([first, *others]), 30)
    full = round(min(share, 1.0) * width)
    bar = ["[" + "#" * full + "-" * (width - full) + "]"] if width >= 4 else []
    return " ".join([first, *bar, *others])[:COLUMNS]


def _bar_width(parts: Iterable[str]) -> int:
    """Return the columns that the parts leave inside the bar's brackets."""
    return COLUMNS - len(" ".join(parts)) - len(" []")
