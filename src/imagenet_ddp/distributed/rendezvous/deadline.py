"""Bound a wait, and print every 10 s what it waits for. No torch here."""

import time
from collections.abc import Callable

from imagenet_ddp.system import console

REPORT_EVERY_S = 10.0


class Deadline:
    """A time limit that starts when it is created."""

    def __init__(self, timeout_s: float):
        self._timeout_s = timeout_s
        self._start = self._last_report = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._start

    @property
    def is_over(self) -> bool:
        return self.elapsed_s > self._timeout_s

    def pause(self, message: Callable[[float], str], pause_s: float) -> bool:
        """Sleep for pause_s; return False at once where the time is over. message: from the seconds so far."""
        if self.is_over:
            return False
        if time.monotonic() - self._last_report >= REPORT_EVERY_S:
            self._last_report = time.monotonic()
            console.print_message(message(self.elapsed_s))
        time.sleep(pause_s)
        return True
