"""Show the progress of a training run: a live view on a terminal, or plain lines in a file or pipe."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning.pytorch as L

from imagenet_ddp.callbacks.loop_state import epochs_validated, is_epoch_over, validates_start
from imagenet_ddp.callbacks.train_log import TrainLog, find_log, of_all
from imagenet_ddp.config.figures import FIGURES, TOP1, Figure, as_words, figure_of
from imagenet_ddp.models.sums import Sums, to_host
from imagenet_ddp.runs.log import Log
from imagenet_ddp.system.text import count_noun, duration, percent

REDRAW_S = 0.1
COLUMNS = 80
BAR_COLUMNS = 16
PERFECT_START = (
    "All validation images are right before the first step, so their accuracy cannot show a better net. Hint: to end "
    "with these weights, press Ctrl-C."
)
LEGEND = "* best so far; wait: share of the time in which training waited for images"


class Progress(L.Callback):
    """Report the progress of a training run, with accuracies in percent.

    On a terminal, show a table of the epochs and, below it, a progress bar. The lines about steps then go to the log
    file only. In a pipe or file, print these lines. If the trainer has a progress bar of Lightning's, it
    replaces the live view, and the lines go to the log file.

    log: receives the lines; None prints them to rank 0's standard output. The lines about training and validation steps
    (every trainer.log_every_n_steps-th and val_log_every_n_steps-th step) require the images that TrainLog counts. With
    other modules, there is one line per epoch, made from trainer.callback_metrics. Requires TrainLog.
    """

    _train_log: TrainLog  # these two are set in setup()
    run_log: Log  # not named `log`, because Lightning overwrites that attribute

    def __init__(self, log: Log | None = None, *, val_log_every_n_steps: int | None = None):
        if log is not None:
            self.run_log = log
        self._draws = False  # whether to draw the live view
        self._log_every, self._val_log_every = 0, val_log_every_n_steps or 100
        self._drawn_s = self._start_s = 0.0
        self._start_step = 0
        self._shown: dict[str, float] | None = None  # means of this epoch shown in the bar
        self._num_rows_shown = 0

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if not hasattr(self, "run_log"):
            self.run_log = Log(None, trainer.global_rank)
        self._train_log = find_log(trainer)
        self._log_every = int(trainer.log_every_n_steps)  # type: ignore[attr-defined]

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if validates_start(trainer):
            words = as_words(self._train_log.figures, named(self._train_log.scores))
            start = f"epoch {of_all(trainer, 0)} ({self._train_log.start}): val"
            self.run_log.say(f"{start if trainer.max_epochs else 'validation:'} {words}")
            best = self._train_log.best
            if (best.monitor, best.value) == (f"val/{TOP1.name}", 1) and trainer.max_epochs != 0:
                self.run_log.say(PERFECT_START)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._start_s, self._start_step, self._num_rows_shown = time.monotonic(), trainer.global_step, 0
        self.run_log.has_other_bar = trainer.progress_bar_callback is not None
        self._draws = self.run_log.is_terminal and not self.run_log.has_other_bar

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.run_log.has_other_bar = False

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step, steps = batch_idx + 1, int(trainer.num_training_batches)
        is_due = bool(self._log_every) and (step % self._log_every == 0 or step == steps)
        if self._train_log.counts_images and (is_due or (step == 1 and self._draws)):
            last, so_far = self._train_log.read_sums()
            self._shown = so_far.means()
            if is_due:
                self._write(self._step_line(trainer, step, steps, self._means_text(last, so_far)))
        self._draw(self._bar, trainer, step, steps)

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        limits = trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
        step, steps = batch_idx + 1, int(sum(limits))
        if self._train_log.counts_images and step % self._val_log_every == 0:
            self._write(self._val_line(trainer, pl_module, outputs, step, steps))
        self._draw(self._val_bar, trainer, step, steps)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Show a validation within an epoch."""
        if trainer.sanity_checking or not (epochs := epochs_validated(trainer)) % 1:
            return
        place = f"epoch {of_all(trainer, trainer.current_epoch + 1)} step {trainer.fit_loop.batch_idx + 1}"
        parts = [f"{place}/{trainer.num_training_batches}", *self._val_words()]
        row = self._row(f"{epochs:.2f}", {}, is_validated=True) if self._draws else None
        self.run_log.say(" | ".join(parts), on_screen=row)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        parts = [f"epoch {of_all(trainer, trainer.current_epoch + 1)}"]
        if not is_epoch_over(trainer):
            steps = count_noun(int(trainer.num_training_batches), "step")
            parts[0] += f" (ended after {trainer.fit_loop.batch_idx + 1} of {steps})"
        figures = self._train_log.figures
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        train = {name: metrics[name] for each in figures[:2] if (name := f"train/{each.name}") in metrics}
        parts[0] += f": train {as_words(figures, named(train))}"
        is_validated = self._train_log.val_step == trainer.global_step
        parts += self._val_words() if is_validated else []
        times = self._train_log.train_times.epoch
        if self._train_log.counts_images:
            parts += [f"{times.images_per_s:.1f} images/s, data wait {percent(times.data_wait_frac, 1)}"]
        values = {**train, "images_per_s": times.images_per_s, "data_wait_frac": times.data_wait_frac}
        row = self._row(of_all(trainer, trainer.current_epoch + 1), values, is_validated) if self._draws else None
        self.run_log.say(" | ".join(parts), on_screen=row)

    def _val_words(self) -> list[str]:
        """Return the parts of a line about the scores of the last validation."""
        log = self._train_log
        own = [each for each in map(figure_of, log.scores) if each.name not in FIGURES]  # of a module or callback
        parts = [f"val {as_words([*log.figures, *own], named(log.scores))}"] if log.scores else []
        if parts and log.best.value is not None:
            words = as_words(log.figures, named({log.best.monitor: log.best.value}))
            parts += [f"best {words or f'{log.best.monitor} {log.best.value:.4g}'}"]
        return parts

    def _row(self, epoch: str, values: Mapping[str, Any], is_validated: bool) -> str:
        """Return a row of the table on a terminal, preceded by the column titles at the start, with what they mean, and
        every 20 rows. values: beside those of the last validation, which are shown if the weights are still its own."""
        log = self._train_log
        scores = log.scores if is_validated else {}
        values = {"epoch": epoch, **values, **scores, "train_s": log.elapsed_s}
        titles = [LEGEND] * (not self._num_rows_shown) + [table_row(log.figures)] * (self._num_rows_shown % 20 == 0)
        self._num_rows_shown += 1
        is_best = bool(scores) and log.best.step == log.val_step
        return "\n".join([*titles, table_row(log.figures, values, is_best=is_best)])

    # in these lines, each figure of the last step is followed by its mean in brackets

    def _step_line(self, trainer: L.Trainer, step: int, steps: int, means: str) -> str:
        times = self._train_log.train_times
        now, epoch = times.last, times.epoch
        count = max(epoch.steps, 1)
        return (
            f"epoch {of_all(trainer, trainer.current_epoch + 1)} step {step}/{steps}"
            f" | batch {now.batch_s:.3f} s ({epoch.batch_s / count:.3f})"
            f" data {now.data_s:.3f} s ({epoch.data_s / count:.3f})"
            f" | {means} | {epoch.images_per_s:.1f} images/s | ETA {self._eta(trainer)}"
        )

    def _val_line(
        self, trainer: L.Trainer, pl_module: Any, outputs: Mapping[str, Any] | None, step: int, steps: int
    ) -> str:
        """Return the line of a validation step, with the means over this rank's images. Waits for the device. outputs:
        None if no image of the batch counts on this rank."""
        start_s, times = time.perf_counter(), self._train_log.val_times
        so_far: Sums = pl_module.validation_sums()
        mine: Sums = outputs["sums"] if outputs else Sums.zeros([*so_far.totals], pl_module.device)
        last, all_so_far = to_host(mine, so_far)
        times.add_wait(time.perf_counter() - start_s)
        now, validation = times.last, times.epoch
        owner = f", rank {trainer.global_rank}'s images" if trainer.world_size > 1 else ""
        return (
            f"validation step {step}/{steps}"
            f" | batch {now.batch_s:.3f} s ({validation.batch_s / max(validation.steps, 1):.3f})"
            f" | {self._means_text(last, all_so_far)} | (mean so far{owner})"
        )

    def _means_text(self, last: Sums, so_far: Sums) -> str:
        now, mean = last.means(), so_far.means()
        return " | ".join(
            f"{each.title} {each.text(now[each.name])} ({each.text(mean[each.name]).removesuffix(' %')})"
            for each in self._train_log.figures
            if each.name in now
        )

    def _write(self, line: str) -> None:
        (self.run_log.note if self.run_log.is_terminal or self.run_log.has_other_bar else self.run_log.say)(line)

    def _draw(self, bar: Callable[[L.Trainer, int, int], str], trainer: L.Trainer, step: int, steps: int) -> None:
        now = time.monotonic()
        if self._draws and now - self._drawn_s > REDRAW_S:
            self._drawn_s = now
            self.run_log.draw(bar(trainer, step, steps)[:COLUMNS])

    # what does not fit into a line of the terminal is cut off, so the words are in the order of their importance

    def _bar(self, trainer: L.Trainer, step: int, steps: int) -> str:
        words = [of_all(trainer, trainer.current_epoch + 1), _filled(step, steps), f"{step}/{steps}"]
        if self._shown is not None:
            words.append(as_words(self._train_log.figures[:2], self._shown, short=True))
        words.append(f"ETA {self._eta(trainer)}")
        if self._shown is not None:
            times = self._train_log.train_times.epoch
            words += [f"{times.images_per_s:.0f} img/s", f"wait {100 * times.data_wait_frac:.0f} %"]
        return " ".join(words)

    def _val_bar(self, trainer: L.Trainer, step: int, steps: int) -> str:
        return f"validation {_filled(step, steps)} {step}/{steps}"

    def _eta(self, trainer: L.Trainer) -> str:
        """Estimate the time left in the whole run from the mean speed so far, including validation."""
        done, left = trainer.global_step - self._start_step, trainer.estimated_stepping_batches - trainer.global_step
        if done <= 0 or not 0 <= left < math.inf:
            return "?"
        return duration((time.monotonic() - self._start_s) / done * left)


def _filled(step: int, steps: int) -> str:
    full = BAR_COLUMNS * step // max(steps, 1)
    return f"[{'#' * full}{'-' * (BAR_COLUMNS - full)}]"


def _speed(images_per_s: float) -> str:
    return f"{images_per_s:,.0f}" if images_per_s >= 100 else f"{images_per_s:.1f}"


def named(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a stage without its prefix: top1 for val/top1."""
    return {name.rpartition("/")[2]: value for name, value in metrics.items()}


def columns(figures: Sequence[Figure]) -> list[tuple[str, int, str, Callable[[Any], str]]]:
    """Return the columns of the table of epochs, within 80 characters: title, width, key of the value, form of it.
    figures: the loss, the score, and further ones, which are shown of a validation only."""
    loss, score, *further = figures
    return [
        ("epoch", 7, "epoch", str),
        (f"train {loss.title}", 11, f"train/{loss.name}", loss.text),
        (score.title, 9, f"train/{score.name}", score.text),
        (f"val {loss.title}", 9, f"val/{loss.name}", loss.text),
        (f"{score.title} ", 10, f"val/{score.name}", score.text),  # with a star where it is the best
        *((each.title, 9, f"val/{each.name}", each.text) for each in further),
        ("images/s", 9, "images_per_s", _speed),
        ("wait", 7, "data_wait_frac", lambda share: percent(share, 1)),
        ("time", 9, "train_s", duration),
    ]


def table_row(figures: Sequence[Figure], values: Mapping[str, Any] | None = None, *, is_best: bool = False) -> str:
    """Format one row of the table, or the titles if there are no values. values: a row of metrics.csv; missing values
    become "-". is_best: mark the score of the validation with a star."""
    line = ""
    for title, width, key, form in columns(figures):
        value = values.get(key) if values else None
        text = title if values is None else "-" if value is None or value != value else form(value)  # nan
        if title.endswith(" ") and values is not None:
            text += "*" if is_best else " "
        line += text.rjust(width)
    return line
