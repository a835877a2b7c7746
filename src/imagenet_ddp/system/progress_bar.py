"""How far a long piece of work is: a bar on a terminal, a line every few seconds in a file or pipe. No torch."""

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
    """`what` of `total` done, how fast, how long still. Called by any number of threads; speaks on stderr, because
    stdout is for results.

    rate: whether units per second say something.
    total: in `unit`. weight: of all the work, where units differ much in cost (bytes, say); None: each counts the same.
    """

    def __init__(
        self,
        what: str,
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
        self.what, self.total, self.unit = what, total, unit
        self.done = 0
        self._rate = rate
        self._weight, self._weight_done, self._weight_before = weight or total, 0, 0
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._lock = threading.RLock()
        self._begun = time.monotonic()
        self._next_line, self._next_bar = self._begun + LINE_S, self._begun
        self._drawn = 0  # columns of the bar on the screen

    def restart(self) -> None:
        """The work begins now: what came before says nothing about its speed."""
        self._begun = time.monotonic()
        self._next_line = self._begun + LINE_S

    def before(self, done: int, weight: int | None = None) -> None:
        """What an earlier run has done: it counts as done, and says nothing about the speed."""
        self.done += done
        self._weight_before += done if weight is None else weight

    def add(self, done: int, weight: int | None = None) -> None:
        """So many more are done."""
        with self._lock:
            self.done += done
            self._weight_done += done if weight is None else weight
            now = time.monotonic()
            if now >= self._next_line:
                self._next_line = now + LINE_S
                line = self.line()
                if not self._is_terminal:
                    self._print(line)
                if self._on_line is not None:
                    self._on_line(line)
            if self._is_terminal and now >= self._next_bar:
                self._next_bar = now + REDRAW_S
                self._draw()

    def line(self) -> str:
        """train: 312,000 of 1,281,167 images (24.4 %), 4,100 images/s, 3:56 left"""
        taken_s = time.monotonic() - self._begun
        share = (self._weight_before + self._weight_done) / max(self._weight, 1)
        text = f"{self.what}: {self.done:,} of {self.total:,} {self.unit} ({percent(min(share, 1), 1)})"
        more = self.more() if self.more is not None else ""
        if not self._weight_done or taken_s <= 0:
            return text + more
        left_s = taken_s / self._weight_done * max(self._weight - self._weight_before - self._weight_done, 0)
        if self._rate and self._weight == self.total:
            text += f", {self._weight_done / taken_s:,.0f} {self.unit}/s"
        return f"{text}, {duration(left_s)} left{more}"

    def say(self, text: str) -> None:
        """A line of its own, above the bar."""
        with self._lock:
            self._wipe()
            self._print(text)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._begun

    def end(self) -> None:
        """The bar is wiped away."""
        with self._lock:
            self._wipe()

    def _draw(self) -> None:
        share = (self._weight_before + self._weight_done) / max(self._weight, 1)
        full = round(20 * min(share, 1.0))
        text = f"[{'#' * full}{'-' * (20 - full)}] {self.line()}"[: shutil.get_terminal_size().columns - 1]
        self._stream.write("\r" + text + " " * max(0, self._drawn - len(text)))
        self._stream.flush()
        self._drawn = len(text)

    def _wipe(self) -> None:
        if self._drawn:
            self._stream.write("\r" + " " * self._drawn + "\r")
            self._stream.flush()
            self._drawn = 0

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)
