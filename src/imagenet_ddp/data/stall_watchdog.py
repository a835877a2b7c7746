"""Report which loader processes stall, and end the run after a timeout. This module does not import torch."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from typing import Any, NoReturn, TypeVar

from imagenet_ddp.data.workers import loader_workers
from imagenet_ddp.system import console
from imagenet_ddp.system.console import Say, print_message
from imagenet_ddp.system.process_exit import exit_at_once

FIRST_S = 60.0  # wait before the first message; each further message comes after twice the wait
POLL_S = 5.0
TIMEOUT_S = 1800.0
LAST_S = 30.0  # longest time until the training process notices that its workers were killed
T = TypeVar("T")


@dataclass
class StallWatchdog:
    """Watchdog of one loader. who: the waiting process, named at the start of messages. timeout_s: in seconds; 0: no
    timeout.

    The training process marks the start and the end of each wait with an assignment, and a thread checks the mark every
    few seconds. After timeout_s, the thread kills the workers, which raises an error in the process that waits for
    them. If no error is raised, the thread ends this process.
    """

    loader: InitVar[Any]  # a DataLoader, or a loader without processes
    location: str = ""  # folder or address of the images, shown in messages
    who: str = "The training"
    say: Say = print_message
    timeout_s: float = TIMEOUT_S
    failure: str = ""  # the error message, set when the timeout has passed
    _since: float | None = None  # start of the current wait
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self, loader: Any) -> None:
        # weak, because the thread would otherwise keep the loader alive, and Python would wait for its processes to end
        self._loader = weakref.ref(loader)

    def watch(self, batches: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Yield all batches of batches(), which is called when the first batch is requested."""
        threading.Thread(target=self._run, name="stall watchdog", daemon=True).start()
        try:
            self._since = time.monotonic()
            for batch in batches():
                self._since = None
                yield batch
                self._since = time.monotonic()
        finally:
            self._since = None
            self._ended.set()

    def _run(self) -> None:
        first_s = min(FIRST_S, self.timeout_s / 4) if self.timeout_s > 0 else FIRST_S
        poll_s = min(POLL_S, first_s / 4)
        seen, waited_s, next_s = None, 0.0, first_s
        while not self._ended.wait(poll_s):
            since = self._since
            if since is None or since != seen:
                seen, waited_s, next_s = since, 0.0, first_s
                continue
            waited_s += poll_s  # counted in polls, so that time in which this process was stopped is left out
            if waited_s >= next_s:
                next_s *= 2
                end = f"after {self.timeout_s:g} s (data.loader_timeout_s), or " if self.timeout_s > 0 else ""
                self.say(
                    f"{self.who} has waited {waited_s:.0f} s for a batch of images{self._from}. "
                    f"The run ends {end}at the third Ctrl-C at the latest."
                )
            if 0 < self.timeout_s <= waited_s:
                self._fail(since)
                return

    @property
    def _from(self) -> str:
        """Describe the folder of the images and the processes that read them, for messages."""
        pids = [worker.pid for worker in loader_workers(self._loader())] or [os.getpid()]
        folder = f" from {self.location}" if self.location else ""
        return f"{folder} (process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))})"

    def _fail(self, since: float) -> None:
        workers = loader_workers(self._loader())
        self.failure = (
            f"timed out after {self.timeout_s:g} s (data.loader_timeout_s): {self.who} got no batch of "
            f"images{self._from}. Hint: check that the disk of the images still responds, and that no process is "
            "stopped (kill -CONT resumes it). If the disk is only slow, set a larger data.loader_timeout_s."
        )
        for worker in workers:
            worker.kill()  # SIGKILL also ends a stopped worker
        if workers and self._ended.wait(LAST_S):
            return
        if self._since == since:
            self._end_process()

    def _end_process(self) -> NoReturn:
        """End this process, because nothing else interrupts a read from a disk that does not respond."""
        console.print_message(self.failure)
        exit_at_once(1)
