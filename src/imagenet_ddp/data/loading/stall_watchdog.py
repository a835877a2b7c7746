"""Where no batch comes, it is said who does not bring it, and after a bound the wait is over. No torch here."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from imagenet_ddp.data.loading.worker_processes import loader_workers
from imagenet_ddp.system import console
from imagenet_ddp.system.console import Say, print_message
from imagenet_ddp.system.text import count_noun

FIRST_S = 60.0  # until the first line; the next ones after twice as long each
POLL_S = 5.0
TIMEOUT_S = 1800.0
LAST_S = 30.0  # for the end of the loader's processes to reach the training process
T = TypeVar("T")

# Letters of /proc/PID/stat, and what one or several processes do.
STATES = {
    "T": ("is stopped", "are stopped"),
    "t": ("is held by a debugger", "are held by a debugger"),
    "D": ("waits for a disk", "wait for a disk"),
    "Z": ("has ended", "have ended"),
    "R": ("works", "work"),
    "S": ("sleeps", "sleep"),
}
_UNKNOWN = ("does not answer", "do not answer")
_SHOWN = 5  # process numbers of each state


@dataclass
class StallWatchdog:
    """One loader's. who: that wait for batches, in front of "has waited". timeout_s: 0: no bound.

    A thread looks every few seconds how long the training process has been waiting, which tells it by two
    assignments a batch. After timeout_s it ends the loader's processes, as that brings an error to whoever waits for
    them; where it brings none, this process ends.
    """

    loader: InitVar[Any]  # a DataLoader, or what has no processes
    location: str = ""  # of the images
    who: str = "The training"
    say: Say = print_message
    timeout_s: float = TIMEOUT_S
    proc: Path = Path("/proc")
    failure: str = ""  # why the loader's processes were ended, as a sentence
    _since: float | None = None  # when the training process began to wait
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self, loader: Any) -> None:
        # a loader whose last reference were this thread's would not end its processes before Python waits for them
        self._loader = weakref.ref(loader)

    def through(self, batches: Callable[[], Iterator[T]]) -> Iterator[T]:
        """All of batches(), which is called when the first is asked for."""
        threading.Thread(target=self._watch, name="stall watchdog", daemon=True).start()
        try:
            self._since = time.monotonic()
            for batch in batches():
                self._since = None
                yield batch
                self._since = time.monotonic()
        finally:
            self._since = None
            self._ended.set()

    def _watch(self) -> None:
        first_s = min(FIRST_S, self.timeout_s / 4) if self.timeout_s > 0 else FIRST_S
        poll_s = min(POLL_S, first_s / 4)
        seen, waited_s, next_s, last = None, 0.0, first_s, time.monotonic()
        while not self._ended.wait(poll_s):
            since, now = self._since, time.monotonic()
            if since is None or since != seen:
                seen, waited_s, next_s = since, 0.0, first_s
            else:
                waited_s += min(now - last, 2 * poll_s)  # a process that was stopped for an hour has not waited for it
            last = now
            if waited_s >= next_s:
                next_s *= 2
                self.say(self._words(waited_s))
            if 0 < self.timeout_s <= waited_s:
                self._give_up(since)
                return

    def _words(self, waited_s: float) -> str:
        end = f"after {self.timeout_s:g} s (data.loader_timeout_s), or " if self.timeout_s > 0 else ""
        return (
            f"{self.who} has waited {waited_s:.0f} s for a batch of images{self._place}: {self._doers()}. "
            f"It ends {end}at the third Ctrl-C at the latest."
        )

    @property
    def _place(self) -> str:
        return f" from {self.location}" if self.location else ""

    @property
    def _workers(self) -> list[Any]:
        return loader_workers(self._loader())

    def _doers(self) -> str:
        if not self._workers and (number := getattr(self._loader(), "num_workers", 0)):
            return f"its {count_noun(number, 'loader process')} still {'starts' if number == 1 else 'start'}"
        if not self._workers:
            does = STATES.get(_state(os.getpid(), self.proc), _UNKNOWN)[0]
            return f"process {os.getpid()}, which reads them itself, {does}"
        pids = [worker.pid for worker in self._workers]
        return f"loader process{'es' if len(pids) > 1 else ''} {process_states(pids, self.proc)}"

    def _give_up(self, since: float | None) -> None:
        workers = self._workers
        stopped = [worker.pid for worker in workers if _state(worker.pid, self.proc) == "T"]
        hint = (
            f"kill -CONT {stopped[0]} would have let it go on; who stopped it?"
            if stopped
            else "is the disk of the images still there? Where it is only slow, a longer data.loader_timeout_s."
        )
        self.failure = (
            f"{self.who} must get a batch of images{self._place} within {self.timeout_s:g} s "
            f"(data.loader_timeout_s), but has none: {self._doers()}. Hint: {hint}"
        )
        for worker in workers:
            worker.kill()  # also one that is stopped
        if workers and self._ended.wait(LAST_S):
            return
        if self._since == since:
            self._end_process()

    def _end_process(self) -> NoReturn:
        """Nothing else ends a read from a disk that hangs."""
        console.print_message(self.failure)
        os._exit(1)


def process_states(pids: Iterable[int], proc: Path = Path("/proc")) -> str:
    """What each process does, the stopped ones first: "8803 is stopped; 8804, 8805 sleep"."""
    by_state: dict[str, list[int]] = {}
    for pid in pids:
        by_state.setdefault(_state(pid, proc), []).append(pid)
    order = sorted(by_state, key=lambda letter: [*STATES, letter].index(letter))
    return "; ".join(_named(by_state[letter], *STATES.get(letter, _UNKNOWN)) for letter in order)


def _state(pid: int, proc: Path) -> str:
    """ "": not known."""
    try:
        return (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _named(pids: Sequence[int], one: str, several: str) -> str:
    more = f" and {len(pids) - _SHOWN} more" if len(pids) > _SHOWN else ""
    return f"{', '.join(map(str, pids[:_SHOWN]))}{more} {several if len(pids) > 1 else one}"
