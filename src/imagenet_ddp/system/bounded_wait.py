"""Limit the time of a wait, and print every 10 s what the process is waiting for. Does not import torch."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from imagenet_ddp.system import console

REPORT_EVERY_S = 10.0

T = TypeVar("T")


def run_bounded(action: Callable[[], T], timeout_s: float) -> T | None:
    """Run the action and return its result; None if it fails or takes longer than timeout_s seconds.

    Without this limit, a store whose machine is gone would block forever.
    """
    result: list[T] = []

    def run() -> None:
        with contextlib.suppress(Exception):
            result.append(action())

    thread = threading.Thread(target=run, name="bounded", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return result[0] if result else None


class Deadline:
    """Time limit that starts when this object is created."""

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
        """Sleep for pause_s seconds and return True; return False at once if the time is over.

        message: returns the line to print, given the seconds so far.
        """
        if self.is_over:
            return False
        if time.monotonic() - self._last_report >= REPORT_EVERY_S:
            self._last_report = time.monotonic()
            console.print_message(message(self.elapsed_s))
        time.sleep(pause_s)
        return True
