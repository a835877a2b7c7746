"""A wait with a bound that says, every 10 s, what it waits for. No torch here."""

import time
from collections.abc import Callable

from imagenet_ddp.system import console

SAY_EVERY_S = 10.0


class Deadline:
    """Begins when it is made."""

    def __init__(self, timeout_s: float):
        self._timeout_s = timeout_s
        self._begin = self._said = time.monotonic()

    @property
    def seconds(self) -> float:
        """So far."""
        return time.monotonic() - self._begin

    def lasts(self, line: Callable[[float], str], pause_s: float) -> bool:
        """After a pause; False, at once, where the time is over. line: what is said, by the seconds so far."""
        seconds = self.seconds
        if seconds > self._timeout_s:
            return False
        if time.monotonic() - self._said >= SAY_EVERY_S:
            self._said = time.monotonic()
            console.print_message(line(seconds))
        time.sleep(pause_s)
        return True
