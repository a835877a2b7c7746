"""Signals that ask a run to stop are only remembered here; graceful_stop.py agrees on what follows. No torch: it is the
first thing every process does, before imports that take seconds."""

import atexit
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator

# SIGUSR2: stop, and start again later; SLURM sends it some time before the time limit (sbatch --signal=USR2@120).
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR2") if hasattr(signal, name))
TWIN_S = 0.5  # SLURM signals every process of a step, and a parent passes on what it got: one request comes twice


class Stopped(Exception):
    """The run stopped where it was asked to, and is saved."""

    def __init__(self, signal_number: int):
        super().__init__(signal_number)
        self.signal_number = signal_number


class Left(SystemExit):
    """A signal has ended what there is nothing to save of."""

    def __init__(self, number: int):
        self.exit_code = 128 + number
        super().__init__(self.exit_code)
        self.signal_name = signal.Signals(number).name

    def __str__(self) -> str:
        return f"Stopped by {self.signal_name}, with nothing to save yet."


class Signals:
    """received: number of the first stop signal, or None."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._times, self._last_s = 0, 0.0

    def hold(self) -> "Signals":
        """From now on remember instead of dying. Asked a third time, the process ends at once without saving."""
        # Python gives its handlers back while it ends: a SIGUSR2 of that moment would make a finished run a failed one
        atexit.register(deafen)
        for number in STOP_SIGNALS:
            earlier = getattr(signal.getsignal(number), "__self__", None)
            if isinstance(earlier, Signals):  # of this process before its heavy imports
                self.received = self.received or earlier.received
            signal.signal(number, self._remember)
        if hasattr(signal, "pthread_sigmask"):
            # a worker starts with them held back by its parent (distributed/spawn.py)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [*STOP_SIGNALS, signal.SIGUSR1])
        return self

    def _remember(self, number: int, frame: object) -> None:
        self.received = self.received or number
        now = time.monotonic()
        self._times += not self._times or now - self._last_s > TWIN_S
        self._last_s = now
        if self._times >= 3:
            os._exit(128 + number)


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """Before a run has anything to save, however long its disk or its peers take: SIGTERM and SIGINT raise Left, also
    one that Signals has remembered. SIGUSR2 asks for another turn, and each turn must have got on by a step: it is
    remembered until then."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    holders = [each for handler in before.values() if isinstance(each := getattr(handler, "__self__", None), Signals)]

    def leave(number: int, frame: object = None) -> None:
        for holder in holders:  # where Left is lost, as at the end of an object, the run ends after its first step
            holder.received = holder.received or number
        raise Left(number)

    for holder in holders:
        if holder.received is not None and holder.received in before:
            raise Left(holder.received)
    try:
        for number in before:
            signal.signal(number, leave)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def deafen() -> None:
    if hasattr(signal, "SIGUSR2"):
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def leave_on_signal(words: str = "") -> None:
    """From now on leave with 128 + the signal's number, without a traceback; words are said before."""

    def leave(number: int, frame: object) -> None:
        if words:
            print(words, file=sys.stderr, flush=True)
        raise Left(number)

    for number in STOP_SIGNALS:
        signal.signal(number, leave)


def exit_on_signal() -> None:
    """For commands with nothing to save."""
    leave_on_signal()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [*STOP_SIGNALS, signal.SIGUSR1])
