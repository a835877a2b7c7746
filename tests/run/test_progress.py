"""Times for people, bars within 80 columns, and nothing but lines where there is no terminal."""

import io
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from imagenet_ddp.run.log import Log
from imagenet_ddp.run.meters import Figures, Meters
from imagenet_ddp.run.progress import Progress, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (42.4, "0:42"), (725, "12:05"), (11400, "3:10:00"), (187200, "2d 04:00:00"), (59.6, "1:00")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_never_wraps_and_leaves_nothing_behind(tmp_path: Path) -> None:
    stream = Terminal()
    log = Log(tmp_path, 0, stream)
    meters = Meters()
    meters.num_images, meters.batch_sum_s, meters.data_sum_s = 123456789, 1.0, 1.0
    progress = Progress(log, meters, 10, 100, 5)
    progress._shown = Figures(12345.678, 1.0, 1.0)
    trainer = cast(Any, SimpleNamespace(current_epoch=998, max_epochs=1000))
    bar = progress._bar(trainer, 123456, 654321)
    assert len(bar) <= 80
    log.bar(bar)
    log.bar("short")
    log.say("a line")
    log.close()
    screen = [""]
    column = 0
    for character in stream.getvalue():
        if character == "\r":
            column = 0
        elif character == "\n":
            screen.append("")
            column = 0
        else:
            screen[-1] = screen[-1][:column] + character + screen[-1][column + 1 :]
            column += 1
    assert screen[0].rstrip() == "a line"


def test_a_pipe_gets_lines_only(tmp_path: Path) -> None:
    stream = io.StringIO()
    log = Log(tmp_path, 0, stream)
    log.bar("never seen")
    log.say("a line")
    log.note("only in the file")
    assert stream.getvalue() == "a line\n"
    log.close()
    assert [line[20:] for line in (tmp_path / "rank0.log").read_text().splitlines()] == ["a line", "only in the file"]


def test_only_rank_0_speaks_on_the_screen(tmp_path: Path) -> None:
    stream = io.StringIO()
    log = Log(tmp_path, 1, stream)
    log.say("a line")
    log.close()
    assert stream.getvalue() == ""
    assert (tmp_path / "rank1.log").read_text().endswith("a line\n")


def test_warnings_are_said_once_and_harmless_ones_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back at the end
    stream = io.StringIO()
    log = Log(tmp_path, 0, stream)
    log.take_over()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        log.take_over()
        for _ in range(2):
            warnings.warn("the sky is\n falling", stacklevel=1)
        warnings.warn("use sync_dist=True", stacklevel=1)
    log.close()
    assert stream.getvalue() == "Warning: the sky is falling\n"
    assert "sync_dist" not in (tmp_path / "rank0.log").read_text()


def test_figures_of_nothing() -> None:
    assert Figures.of([0.0, 0.0, 0.0, 0.0]) == Figures(0.0, 0.0, 0.0)
    assert Figures.of([6.0, 1.0, 2.0, 4.0]) == Figures(1.5, 0.25, 0.5)


def test_the_time_left_counts_from_where_a_resumed_run_began(tmp_path: Path) -> None:
    log = Log(tmp_path, 0, io.StringIO())
    progress = Progress(log, Meters(), 10, 100, 5)
    log.close()
    trainer: Any = SimpleNamespace(current_epoch=3, max_epochs=4)
    progress._before = 3 + 28 / 75
    progress._began = time.monotonic() - 10.0
    assert progress._eta(trainer, 38, 75) == "0:37"  # ten of 75 steps took ten seconds, 37 are left
