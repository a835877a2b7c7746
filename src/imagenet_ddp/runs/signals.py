"""Record stop signals. callbacks/graceful_stop.py agrees with the other ranks on the step at which to stop. Does not
import torch, because every process runs this first, before imports that take seconds."""

import atexit
import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from imagenet_ddp.errors import SignalExit
from imagenet_ddp.system.console import discard_closed_terminal, print_message
from imagenet_ddp.system.process import command_is_gone
from imagenet_ddp.system.stop_signals import DUPLICATE_S, RESTART_SIGNALS, STOP_SIGNALS, respected


class Stopped(Exception):
    """Raised when a signal has stopped the run, after a checkpoint was saved (if callbacks.checkpoint is on).
    lost_node: the one whose command is gone, if that is why; None after a signal of the user or the system."""

    def __init__(self, signal_number: int, lost_node: int | None = None):
        super().__init__(signal_number)
        self.signal_number, self.lost_node = signal_number, lost_node


class Signals:
    """Records the first stop signal instead of ending the process. received: its number, or None. node: of a worker.
    lost_node: the same if the signal came because its command is gone, else None."""

    def __init__(self, node: int | None = None) -> None:
        self.received: int | None = None
        self.lost_node: int | None = None
        self._node = node
        self._num_requests, self._last_s = 0, 0.0

    def install(self) -> "Signals":
        """Install the handlers. The third stop request ends the process at once, without saving."""
        # Python restores the default handlers while it exits, so a late request for a restart would turn a finished run
        # into a failure
        for number in RESTART_SIGNALS:
            atexit.register(signal.signal, number, signal.SIG_IGN)
        for number in respected(STOP_SIGNALS):
            earlier = getattr(signal.getsignal(number), "__self__", None)
            if isinstance(earlier, Signals):  # this process installed it before its slow imports
                self.received, self.lost_node = self.received or earlier.received, earlier.lost_node
            signal.signal(number, self._record)
        _unblock()
        return self

    def keep(self, number: int) -> None:
        """Record a signal, unless there is one."""
        if self.received is None:
            self.received = number
            self.lost_node = self._node if number == signal.SIGTERM and command_is_gone() else None

    def _record(self, number: int, frame: object) -> None:
        self.keep(number)
        if number == signal.SIGHUP:
            discard_closed_terminal()
        now = time.monotonic()
        if not self._num_requests or now - self._last_s > DUPLICATE_S:
            self._num_requests += 1
        self._last_s = now
        if self._num_requests >= 3:
            os._exit(128 + number)


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, object], None], numbers: Sequence[int]) -> Iterator[None]:
    """Handle these signals with another function in the block."""
    before = {number: signal.getsignal(number) for number in respected(numbers)}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def raise_on_signal() -> Iterator[None]:
    """Raise SignalExit on SIGTERM, SIGINT and SIGHUP, and at once if Signals has already recorded one of them. Use it
    while a run has nothing to save, so that the run ends even while it waits for a disk or for other ranks. A
    request for a restart, which is useful only after a training step, stays recorded until then."""
    numbers = [number for number in STOP_SIGNALS if number not in RESTART_SIGNALS]
    owners = [getattr(signal.getsignal(number), "__self__", None) for number in numbers]
    recorders = [owner for owner in owners if isinstance(owner, Signals)]

    def leave(number: int, frame: object = None) -> None:
        if number == signal.SIGHUP:
            discard_closed_terminal()
        for recorder in recorders:  # if SignalExit is swallowed (in __del__), the run still stops after its first step
            recorder.keep(number)
        raise SignalExit(number)

    for recorder in recorders:
        if recorder.received is not None and recorder.received in numbers:
            raise SignalExit(recorder.received)
    with _handled_by(leave, numbers):
        yield


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """Handle the stop signals that arrive in the block when it ends. Use it for short calls of a library that handles
    any exception as an error of its own, or whose cleanup fails if it is interrupted (OmegaConf does both)."""
    received: list[int] = []
    try:
        with _handled_by(lambda number, frame: received.append(number), STOP_SIGNALS):
            yield
    finally:
        for number in received:
            signal.raise_signal(number)


def exit_on_signal(message: str = "") -> None:
    """Make a stop signal end the process with exit code 128 + signal number and without a traceback, after printing the
    message to stderr. Meant for commands that have nothing to save. A duplicate of the signal is ignored, because it
    would interrupt the cleanup at exit. A later signal ends that cleanup, in which Python would print an exception."""
    last_s = -math.inf

    def end_next() -> None:
        for number in respected(STOP_SIGNALS):
            signal.signal(number, lambda number, frame: os._exit(128 + number))

    def leave(number: int, frame: object) -> None:
        nonlocal last_s
        if (now := time.monotonic()) - last_s < DUPLICATE_S:
            return
        last_s = now
        if number == signal.SIGHUP:
            discard_closed_terminal()
        if message:
            print_message(message)
        atexit.register(end_next)  # the last one registered is the first to run
        raise SignalExit(number)

    for number in respected(STOP_SIGNALS):
        signal.signal(number, leave)
    _unblock()


def _unblock() -> None:
    """Unblock the signals that the parent blocked while this process was starting (distributed/spawn.py)."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
