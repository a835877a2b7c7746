"""Show the progress of a long task: a bar on a terminal, a line every few seconds in a file or pipe.

Does not import torch.
"""

import shutil
import sys
import time
from collections.abc import Callable

from imagenet_ddp.system.text import duration, percent

LINE_S = 5.0  # seconds between two lines
REDRAW_S = 0.2  # seconds between two drawings of the bar


class Progress:
    """Show on stderr how much of `total` is done, the speed, and the time left.

    total: in `unit`. rate: whether to show units per second. The attribute more: a function that returns text to add to
    each line.
    """

    def __init__(self, title: str, total: int, unit: str, *, rate: bool = True):
        self.more: Callable[[], str] = lambda: ""
        self.title, self.total, self.unit = title, total, unit
        self.done = self._earlier = 0
        self._rate = rate
        self._stream = sys.stderr
        self._is_terminal = self._stream.isatty()
        self._num_drawn = 0  # columns of the bar on the screen
        self.restart_clock()

    def restart_clock(self) -> None:
        """Measure the speed from now on, so that a slow start-up does not count."""
        self._begin_s = time.monotonic()
        self._next_s = self._begin_s + (0 if self._is_terminal else LINE_S)

    def add_earlier(self, done: int) -> None:
        """Count units that an earlier run has done, without affecting the speed."""
        self.done += done
        self._earlier += done

    def add(self, done: int) -> None:
        self.done += done
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + (REDRAW_S if self._is_terminal else LINE_S)
        if self._is_terminal:
            self._draw()
        else:
            print(self.line(), file=self._stream, flush=True)

    def line(self) -> str:
        """Return a line such as "train: 312,000 of 1,281,167 images (24.4 %), 4,100 images/s, 3:56 left"."""
        text = f"{self.title}: {self.done:,} of {self.total:,} {self.unit} ({percent(self._fraction, 1)})"
        if self.done <= self._earlier or self.seconds <= 0:
            return text + self.more()
        speed = (self.done - self._earlier) / self.seconds
        if self._rate:
            text += f", {speed:,.0f} {self.unit}/s"
        return f"{text}, {duration(max(self.total - self.done, 0) / speed)} left{self.more()}"

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin_s

    def close(self) -> None:
        """Remove the bar from the screen."""
        if self._num_drawn:
            self._stream.write("\r" + " " * self._num_drawn + "\r")
            self._stream.flush()
            self._num_drawn = 0

    @property
    def _fraction(self) -> float:
        return min(self.done / max(self.total, 1), 1.0)

    def _draw(self) -> None:
        full = round(20 * self._fraction)
        text = f"[{'#' * full}{'-' * (20 - full)}] {self.line()}"[: shutil.get_terminal_size().columns - 1]
        self._stream.write("\r" + text + " " * max(0, self._num_drawn - len(text)))
        self._stream.flush()
        self._num_drawn = len(text)
