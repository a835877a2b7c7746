"""Limit the time of a wait, wait for a lock, and print every 10 s what the process is waiting for."""

import contextlib
import fcntl
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from imagenet_ddp.system.console import print_message

REPORT_EVERY_S = 10.0  # between two messages about a wait

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
            print_message(message(self.elapsed_s))
        time.sleep(pause_s)
        return True


POLL_S = 0.1


@contextmanager
def lock_or_wait(lock: Path, *, silent: bool = False) -> Generator[None]:
    """Lock a file, and wait while another process holds the lock, which the system releases if that process ends. Say
    so at once and every REPORT_EVERY_S seconds. On a file system without locks, nothing is locked. silent: do not say
    it."""
    with lock.open("a") as handle:
        begin_s = next_s = time.monotonic()
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                now_s = time.monotonic()
            except OSError:
                break
            if not silent and now_s >= next_s:
                next_s = now_s + REPORT_EVERY_S
                waited = f"for {now_s - begin_s:.0f} s so far"
                print_message(
                    f"Waiting for another process that prepares {lock.parent} (it holds {lock.name}), {waited}."
                )
            time.sleep(POLL_S)
        yield
