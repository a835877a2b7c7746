"""Signals that ask a run to stop are only remembered here; what follows is agreed in stop.py. No torch: it is the
first thing every process does, before imports that take seconds."""

import os
import signal

STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT") if hasattr(signal, name))


class Signals:
    """received: number of the first stop signal, or None."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._times = 0

    def hold(self) -> "Signals":
        """From now on remember instead of dying. Asked a third time, the process ends at once without saving."""
        for number in STOP_SIGNALS:
            earlier = getattr(signal.getsignal(number), "__self__", None)
            if isinstance(earlier, Signals):  # of this process before its heavy imports
                self.received = self.received or earlier.received
            signal.signal(number, self._remember)
        if hasattr(signal, "pthread_sigmask"):
            # a worker starts with them held back by its parent (distributed/launch.py)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [*STOP_SIGNALS, signal.SIGUSR1, signal.SIGUSR2])
        return self

    def _remember(self, number: int, frame: object) -> None:
        self.received = self.received or number
        self._times += 1
        if self._times >= 3:
            os._exit(128 + number)


def exit_on_signal() -> None:
    """For commands with nothing to save: leave with 128 + the signal's number, without a traceback."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    for number in STOP_SIGNALS:
        signal.signal(number, leave)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [*STOP_SIGNALS, signal.SIGUSR1, signal.SIGUSR2])
