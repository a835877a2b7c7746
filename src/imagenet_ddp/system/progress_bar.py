"""Show the progress of long work: a bar on a terminal, a line every few seconds in a file or pipe. No torch."""

import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import IO

from imagenet_ddp.system.text import duration, percent

LINE_S = 5.0  # between two lines
REDRAW_S = 0.2  # between two drawings of the bar


class Progress:
    """Show how much of `total` is done, how fast, and the time left, on stderr. May be updated by several threads.

    total: in `unit`. weight: cost of all the work, where units differ much (bytes, say); None: each counts the same.
    rate: whether units per second are worth showing. more: text to add. on_line: called with each line.
    """

    def __init__(
        self,
        title: str,
        total: int,
        unit: str,
        *,
        weight: int | None = None,
        rate: bool = True,
        stream: IO[str] | None = None,
        more: Callable[[], str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ):
        self.more, self._on_line = more, on_line
        self.title, self.total, self.unit = title, total, unit
        self.done, self.weight = 0, weight or total
        self._rate = rate
        self._weight_done = self._weight_earlier = 0
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._lock = threading.RLock()
        self._num_drawn = 0  # columns of the bar on the screen
        self.restart_clock()

    def restart_clock(self) -> None:
        """Begin to measure the speed now, after a start-up that took time."""
        self._begin_s = time.monotonic()
        self._next_line_s, self._next_bar_s = self._begin_s + LINE_S, self._begin_s

    def add_earlier(self, done: int, weight: int | None = None) -> None:
        """Count what an earlier run has done, which says nothing about the speed."""
        self.done += done
        self._weight_earlier += done if weight is None else weight

    def add(self, done: int, weight: int | None = None) -> None:
        with self._lock:
            self.done += done
            self._weight_done += done if weight is None else weight
            now = time.monotonic()
            if now >= self._next_line_s:
                self._next_line_s = now + LINE_S
                line = self.line()
                if not self._is_terminal:
                    print(line, file=self._stream, flush=True)
                if self._on_line is not None:
                    self._on_line(line)
            if self._is_terminal and now >= self._next_bar_s:
                self._next_bar_s = now + REDRAW_S
                self._draw()

    def line(self) -> str:
        """Return: train: 312,000 of 1,281,167 images (24.4 %), 4,100 images/s, 3:56 left"""
        text = f"{self.title}: {self.done:,} of {self.total:,} {self.unit} ({percent(self._fraction, 1)})"
        more = self.more() if self.more is not None else ""
        if not self._weight_done or self.seconds <= 0:
            return text + more
        speed = self._weight_done / self.seconds
        left_s = max(self.weight - self._weight_earlier - self._weight_done, 0) / speed
        if self._rate and self.weight == self.total:
            text += f", {speed:,.0f} {self.unit}/s"
        return f"{text}, {duration(left_s)} left{more}"

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin_s

    def close(self) -> None:
        """Remove the bar from the screen."""
        with self._lock:
            if self._num_drawn:
                self._stream.write("\r" + " " * self._num_drawn + "\r")
                self._stream.flush()
                self._num_drawn = 0

    @property
    def _fraction(self) -> float:
        return min((self._weight_earlier + self._weight_done) / max(self.weight, 1), 1.0)

    def _draw(self) -> None:
        full = round(20 * self._fraction)
        text = f"[{'#' * full}{'-' * (20 - full)}] {self.line()}"[: shutil.get_terminal_size().columns - 1]
        self._stream.write("\r" + text + " " * max(0, self._num_drawn - len(text)))
        self._stream.flush()
        self._num_drawn = len(text)
