"""End the process without Python's clean-up, after finishing what must not be lost: a checkpoint that a thread is still
writing, and files that other processes would take for those of a live process."""

import atexit
import contextlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import NoReturn

LONGEST_S = 60.0  # longest wait in seconds, in case a disk no longer responds
_futures: set[Future] = set()
_cleanups: list[Callable[[], None]] = []


def finish_before_exit(future: Future) -> None:
    """Make exit_at_once wait for this future. At a normal exit, Python itself joins the threads of executors."""
    _futures.add(future)
    future.add_done_callback(_futures.discard)


def clean_up_at_exit(function: Callable[[], None]) -> Callable[[], None]:
    """Call the function at a normal exit and in exit_at_once. Can be used as a decorator."""
    _cleanups.append(function)
    return atexit.register(function)


def exit_at_once(code: int) -> NoReturn:
    """End this process without Python's clean-up, which would wait for the threads of a hanging collective, disk or
    store, or abort while they run C++ code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe must not keep the process alive
            stream.flush()
    for function in _cleanups:
        function()
    wait(list(_futures), LONGEST_S)
    os._exit(code)
