"""Times for people, bars within 80 columns, and nothing but lines where there is no terminal."""

import io
import logging
import math
import re
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from imagenet_ddp.callbacks.measures import Span
from imagenet_ddp.callbacks.progress import Progress, table_row
from imagenet_ddp.callbacks.train_log import TrainLog
from imagenet_ddp.models.sums import Sums
from imagenet_ddp.models.task import OneLabel
from imagenet_ddp.runs.log import Log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown_by(text: str) -> list[str]:
    """What stands on a terminal after this text: wiping of lines and moves upward are obeyed, colours are not."""
    screen, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|.|\n|\r", text):
        if part.endswith("K"):
            screen[row] = "" if part == "\x1b[2K" else screen[row][:column]
        elif part.endswith("A") and part.startswith("\x1b"):
            row -= int(part[2:-1])
        elif part == "\n":
            row, column = row + 1, 0
            screen += [""] * (row + 1 - len(screen))
        elif part == "\r":
            column = 0
        elif not part.startswith("\x1b"):
            screen[row] = screen[row][:column].ljust(column) + part + screen[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in screen]


def made(log: Log, metrics: TrainLog, every: int = 10, val_every: int = 100) -> Progress:
    """Set up as in a trainer."""
    progress = Progress(log, val_log_every_n_steps=val_every)
    trainer: Any = SimpleNamespace(callbacks=[metrics, progress], log_every_n_steps=every)
    for callback in (metrics, progress):
        callback.setup(trainer, cast(Any, SimpleNamespace(task=OneLabel(10))), "fit")
    return progress


def at(epoch: int, epochs: int, **more: Any) -> Any:
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    more = {"callbacks": [], "strategy": strategy, "progress_bar_callback": None, "global_step": 0, **more}
    more = {"estimated_stepping_batches": 12, **more}
    return SimpleNamespace(current_epoch=epoch, max_epochs=epochs, world_size=1, sanity_checking=False, **more)


@pytest.mark.parametrize(
    ("images", "epochs", "steps", "means"),
    [(250, 2, 12, {"loss": 2.3, "top1": 0.1}), (123456789, 1000, 654321, {"loss": 12345.678, "top1": 1.0})],
)
def test_a_bar_has_what_matters_in_80_columns(
    tmp_path: Path, images: int, epochs: int, steps: int, means: dict[str, float]
) -> None:
    metrics = TrainLog()
    metrics.train_times.run = Span(images, 1, 1.0, 1.0)
    log = Log(tmp_path, 0, Terminal())
    progress = made(log, metrics)
    log.close()
    progress._shown, progress._start_s = means, time.monotonic() - 300_000
    trainer = at(epochs - 1, epochs, global_step=2 * steps, estimated_stepping_batches=3 * steps)
    bar = progress._bar(trainer, steps // 2, steps)
    assert {f"{steps // 2}/{steps}", "loss", "top-1"} <= set(bar[:80].split())
    assert re.search(r" \[[#-]{16}\] ", bar)
    assert progress._bar(at(epochs - 1, -1), 1, steps).startswith(f"{epochs} ["), "there is no last epoch"
    assert bar.startswith(f"{epochs}/{epochs} ")
    assert "ETA 1d " in bar[:80]


@pytest.mark.parametrize(("steps", "left"), [(35, "0:30"), (20, "0:00"), (math.inf, "?")])
def test_the_time_left_is_that_of_the_steps_left(tmp_path: Path, steps: float, left: str) -> None:
    """15 steps after a resume took 30 s."""
    log = Log(tmp_path, 0)
    progress = made(log, TrainLog())
    log.close()
    progress._start_step, progress._start_s = 5, time.monotonic() - 30
    assert progress._eta(at(1, 9, global_step=20, estimated_stepping_batches=steps)) == left


def test_a_terminal_gets_a_table_of_epochs_above_the_live_view(tmp_path: Path) -> None:
    stream = Terminal()
    log = Log(tmp_path, 0, stream)
    numbers = TrainLog()
    numbers._begin_s = time.perf_counter() - 100 * 3600  # the widest time
    progress = made(log, numbers)
    progress.on_train_start(at(0, 3), cast(Any, None))
    for epoch, (loss, top1) in enumerate([(2.0, 0.25), (1.0, 0.5)]):
        scores = {"val/loss": loss, "val/top1": top1, "val/top5": 1.0}
        trainer = at(epoch, 3, callback_metrics={"train/loss": torch.tensor(loss), "train/top1": torch.tensor(top1)},
                     num_training_batches=4, fit_loop=SimpleNamespace(batch_idx=3))  # fmt: skip
        trainer.callback_metrics |= {name: torch.tensor(value) for name, value in scores.items()}
        numbers.on_validation_end(trainer, cast(Any, None))
        progress.on_train_epoch_end(trainer, cast(Any, None))
    progress._draw(progress._bar, at(2, 3), 1, 4)
    legend, head, *rows, bar = [line for line in shown_by(stream.getvalue()) if line]
    assert " ".join(head.split()) == "epoch train loss top-1 val loss top-1 top-5 images/s wait time"
    assert [line.split()[:3] for line in rows] == [["1/3", "2.0000", "25.00"], ["2/3", "1.0000", "50.00"]]
    assert "50.00 %*" in rows[1] and rows[1].endswith(" 4d 04:00")
    assert all(len(line) <= 80 for line in (legend, head, *rows, bar))
    assert legend.startswith("* best so far; wait: share of the time")
    assert bar.startswith("3/3 [")
    log.close()
    assert "3/3 [" not in shown_by(stream.getvalue())[-1]
    assert "epoch 2/3: train loss 1.0000" in (tmp_path / "rank0.log").read_text()


@pytest.mark.parametrize(("best", "epochs", "is_said"), [(1.0, 4, True), (0.98, 4, False), (1.0, 0, False)])
def test_a_start_without_mistakes_cannot_be_improved_on_visibly(
    tmp_path: Path, best: float, epochs: int, is_said: bool
) -> None:
    metrics, stream = TrainLog(start="the weights of a run"), io.StringIO()
    metrics.best.value, log = best, Log(tmp_path, 0, stream)
    trainer = at(0, epochs, num_sanity_val_steps=math.inf)
    trainer.sanity_checking = True
    made(log, metrics).on_sanity_check_end(trainer, cast(Any, None))
    log.close()
    lines = stream.getvalue().splitlines()
    start = f"epoch 0/{epochs} (the weights of a run): val" if epochs else "validation:"
    assert lines[0].startswith(start) and len(lines) == 1 + is_said


@pytest.mark.parametrize(("world_size", "whose"), [(1, "(mean so far)"), (2, "(mean so far, rank 1's images)")])
def test_a_validation_line_has_the_training_lines_figures(tmp_path: Path, world_size: int, whose: str) -> None:
    """At its steps only; the last step's, and the means of all since the validation began."""
    stream = io.StringIO()
    so_far = [(8.0, 1, 2, 4), (12.0, 4, 6, 8), (12.0, 4, 6, 9)]
    names = ("loss", "top1", "top5")
    sums = (Sums(dict(zip(names, map(torch.tensor, totals), strict=True)), n) for *totals, n in so_far)
    module: Any = SimpleNamespace(task=OneLabel(10), device="cpu", validation_sums=lambda: next(sums))
    trainer = at(0, 2, num_val_batches=[5])
    trainer.world_size, trainer.global_rank = world_size, 1
    metrics = TrainLog()
    log = Log(tmp_path, 0, stream)
    progress = made(log, metrics, 10, 2)
    for callback in (metrics, progress):
        callback.on_validation_start(trainer, module)
    metrics.counts_images = True
    batch = {"target": torch.tensor([0, 0, 0])}
    for step in range(5):
        outputs = {"sums": Sums(dict(zip(names, torch.tensor([4.0, 1, 1]), strict=True)), 2)} if step != 3 else None
        for callback in (metrics, progress):
            callback.on_validation_batch_end(trainer, module, outputs, batch, step)
    log.close()
    first, second = stream.getvalue().splitlines()
    assert re.sub(r"\d\.\d{3} s \(\d\.\d{3}\)", "TIMES", first) == (
        "validation step 2/5 | batch TIMES | loss 2.0000 (2.0000) | top-1 50.00 % (25.00) | top-5 50.00 % (50.00)"
        f" | {whose}"
    )
    assert "| loss 0.0000 (1.5000) | top-1 0.00 % (50.00) | top-5 0.00 % (75.00) |" in second  # a rank without images


def test_the_log_has_what_lightning_warns_of_and_what_an_option_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back at the end
    log = Log(tmp_path, 0, io.StringIO())
    log.capture_libraries()
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).info("TPU available: False, using: 0 TPU cores")
        logging.getLogger(name).warning("the sky is\n falling")
    logging.getLogger("lightning.pytorch.profilers.profiler").info("a table that was requested")
    log.close()
    lines = [line.split(" ", 2)[2] for line in (tmp_path / "rank0.log").read_text().splitlines()]
    assert lines == ["the sky is falling"] * 2 + ["a table that was requested"]


@pytest.mark.parametrize("values", [
    {"epoch": 1.0},
    {"epoch": 999, "train/loss": 12345.6, "train/top1": 1.0, "val/loss": math.nan, "val/top1": 1.0, "val/top5": None,
     "images_per_s": 12345.6, "data_wait_frac": 0.999, "train_s": 86_399.0},
])  # fmt: skip
def test_a_row_stands_below_its_titles(values: dict):
    figures = OneLabel(10).figures
    text = table_row(figures, values, is_best=True)
    assert len(text) == len(table_row(figures)) <= 80
    for title in ("val loss", "top-5"):
        end = table_row(figures).index(title) + len(title)
        assert text[end - 1] == "-" and text[end : end + 1] in ("", " ")
