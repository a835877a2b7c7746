"""Limit the time of a wait, wait for a lock, and print every 10 s what takes long."""

import contextlib
import fcntl
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.files import open_to_append
from imagenet_ddp.system.say_once import say_once

REPORT_EVERY_S = 10.0  # between two messages about a wait
LEAVE_S = 0.2  # after a signal, so that a thread leaves C++ code: Python's exit aborts if it returns from there later

T = TypeVar("T")


def run_bounded(action: Callable[[], T], timeout_s: float) -> T | None:
    """Run the action and return its result; None if it fails or takes longer than timeout_s seconds.

    Without this limit, a store whose machine is gone would block forever.
    """
    with contextlib.suppress(Exception):
        return call_bounded(action, timeout_s)
    return None


def call_bounded(
    action: Callable[[], T], timeout_s: float, waiting: str | None = None, say: Callable[[str], None] = print_message
) -> T:
    """Run the action in a thread, and return its result or raise its error. Raises TimeoutError after timeout_s
    seconds. waiting: what to print every REPORT_EVERY_S seconds, followed by the time. say: prints it."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    deadline = Deadline(timeout_s, say)
    try:
        threading.Thread(target=run, name="bounded", daemon=True).start()
        while not wait([future], min(deadline.remaining_s, REPORT_EVERY_S)).done:
            if deadline.is_over:
                raise TimeoutError(f"no answer for {timeout_s:.0f} s")
            if waiting is not None:
                say(f"{waiting}, {deadline.reported_s:.0f} s.")
        return future.result()
    finally:
        wait([future], LEAVE_S)


class Deadline:
    """Time limit that starts when this object is created. say: prints what is waited for."""

    def __init__(self, timeout_s: float, say: Callable[[str], None] = print_message):
        self._timeout_s, self._say = timeout_s, say
        self._start = self._last_report = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._start

    @property
    def reported_s(self) -> float:
        """Return the elapsed time as messages have it: the same in all processes that wait for the same."""
        return self.elapsed_s // REPORT_EVERY_S * REPORT_EVERY_S

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._timeout_s - self.elapsed_s)

    @property
    def is_over(self) -> bool:
        return self.elapsed_s >= self._timeout_s

    def pause(self, message: Callable[[float], str], pause_s: float) -> bool:
        """Sleep for pause_s seconds and return True; return False at once if the time is over.

        message: returns the line to print, given the seconds so far.
        """
        if self.is_over:
            return False
        if time.monotonic() - self._last_report >= REPORT_EVERY_S:
            self._last_report = time.monotonic()
            self._say(message(self.reported_s))
        time.sleep(pause_s)
        return True


@contextmanager
def said_while_slow(what: str) -> Generator[None]:
    """Print what the block does, with its time, every REPORT_EVERY_S seconds, once per machine."""
    done, deadline = threading.Event(), Deadline(0)

    def report() -> None:
        while not done.wait(REPORT_EVERY_S):
            say_once(f"{what}, {deadline.reported_s:.0f} s so far.")

    thread = threading.Thread(target=report, name="said while slow", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(LEAVE_S)


POLL_S = 0.1


@contextmanager
def lock_or_wait(lock: Path, *, silent: bool = False) -> Generator[None]:
    """Lock a file, and wait while another process holds the lock, which the system releases if that process ends. Say
    so at once and every REPORT_EVERY_S seconds. On a file system without locks, nothing is locked. silent: do not say
    it."""
    with open_to_append(lock) as handle:
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
