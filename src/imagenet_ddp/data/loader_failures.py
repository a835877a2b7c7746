"""Explain why no batch arrives: report a wait, end the run after data.loader_timeout_s, and name how a loader process
ended, for which torch reports only that it exited. This module does not import torch."""

import itertools
import multiprocessing.connection
import os
import resource
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import InitVar, dataclass, field
from typing import Any, TypeVar

from imagenet_ddp.data.workers import (
    NOT_SENT,
    loader_workers,
    preserve_sigchld_handler,
    raise_open_file_limit,
    signal_name,
)
from imagenet_ddp.errors import RunError, causes
from imagenet_ddp.system import console
from imagenet_ddp.system.console import Say, print_message
from imagenet_ddp.system.process import exit_at_once

FIRST_S = 60.0  # wait before the first message; each further message comes after twice the wait
POLL_S = 5.0
TIMEOUT_S = 1800.0
LAST_S = 30.0  # longest time until the training process notices that its workers were killed
SETTLE_S = 2.0  # longest time from the end of a process until its parent can read the exit code
PIN_THREAD = "Pin memory thread exited"  # with data.pin_memory, this thread receives the batches
_CRASHES = ("SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE")
T = TypeVar("T")


@dataclass
class StallWatchdog:
    """Watchdog of one loader. who: the waiting process, named at the start of messages. timeout_s: in seconds; 0: no
    timeout.

    The training process marks the start and the end of each wait with an assignment, and a thread checks the mark every
    few seconds. After timeout_s, the thread kills the workers, which raises an error in the process that waits for
    them. If no error is raised, the thread ends this process, because nothing else interrupts a read from a disk that
    does not respond.
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
            console.print_message(self.failure)
            exit_at_once(1)


def explain_failures(start: Callable[[], Iterable[T]], loader: Any, watchdog: StallWatchdog) -> Iterator[T]:
    """Yield the batches of start(), which may start the loader's workers. watchdog: the watchdog of this loader, not
    yet started. Raises RunError if the reason for a failure is known."""
    raise_open_file_limit()

    def batches() -> Iterator[T]:
        with preserve_sigchld_handler():
            found = iter(start())
            first = list(itertools.islice(found, 1))
        yield from first
        yield from found

    try:
        yield from watchdog.watch(batches)
    except Exception as error:
        known = RunError(watchdog.failure) if watchdog.failure else explain(error, loader)
        if known is None:
            raise
        raise known from error


def explain(error: BaseException, loader: Any) -> RunError | None:
    """Return a RunError with the reason for an error raised by a DataLoader, or None if no worker caused the error."""
    if isinstance(error, RunError) or not getattr(loader, "num_workers", 0):
        return None
    text = "\n".join(f"{type(each).__name__}: {each}" for each in causes(error))
    of_worker = "DataLoader worker" in text or PIN_THREAD in text
    exits = _exits(loader, wait=of_worker or isinstance(error, OSError | EOFError))
    message = _from_exits(exits, loader) or _from_text(text, loader)
    return RunError(message) if message else None


def _from_exits(exits: list[tuple[int, int]], loader: Any) -> str:
    by_name = {signal_name(code): (pid, code) for pid, code in reversed(exits) if code}
    if not by_name:
        return ""
    # several workers may have ended, one because of another, so the most informative cause is reported
    name = next((name for name in ("SIGKILL", "SIGBUS", *_CRASHES) if name in by_name), next(iter(by_name)))
    pid, code = by_name[name]
    check = "`python -m imagenet_ddp.prepare prepare=check` with the same data options"
    why = "Its own error message, if any, is printed above"
    hint = "set data.num_workers=0 to get the error in the training process"
    if name == "SIGKILL":
        why, hint = "Memory has usually run out", f"set {_less(loader)}, or request more memory"
    elif name == "SIGBUS":
        why = "/dev/shm is full, or a packed file was truncated"
        hint = f"{_more_shm(loader)}. To find a truncated file, run {check}"
    elif name in _CRASHES:
        why = "A library crashed, most likely on an image"
        hint = f"run {check} to find the image, or set data.decoder=pillow to use another decoder"
    elif code == NOT_SENT:
        why = "It could not send a batch, for the reason printed above"
        hint = f"if /dev/shm is full, {_more_shm(loader)}. If too many files are open, raise the limit (ulimit -n)"
    ended = f"was killed by {name}" if name else f"ended with exit code {code}"
    return f"DataLoader worker {pid} (one of {loader.num_workers}) {ended}. {why}. Hint: {hint}."


def _from_text(text: str, loader: Any) -> str:
    """Explain an error raised by a worker, or by the process receiving its batches."""
    if "Too many open files" in text or "items of ancdata" in text:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        more = f"run `ulimit -n {hard}` before the command" if hard > soft else "raise the hard limit (ulimit -Hn)"
        return (
            f"too many open files: each batch in transit needs several, and this process may open {soft} (ulimit "
            f"-n). Hint: {more}, or set {_less(loader)}."
        )
    # the loader first makes semaphores in this process, whose error message lacks the words "shared memory"
    where = "shared memory" in text or text.startswith("OSError: [Errno 28] No space left on device")
    if where and any(words in text for words in ("No space left", "Cannot allocate memory")):
        return f"DataLoader workers cannot send batches, because /dev/shm is full. Hint: {_more_shm(loader)}."
    return ""


def _more_shm(loader: Any) -> str:
    return f"start the container with docker run --ipc=host (or --shm-size=8g), or set {_less(loader)}"


def _less(loader: Any) -> str:
    return f"data.num_workers={loader.num_workers // 2} (now {loader.num_workers}) or a smaller data.batch_size"


def _exits(loader: Any, *, wait: bool) -> list[tuple[int, int]]:
    """Return (pid, exit code) of each worker that has ended. An exit code -n means that signal n killed the worker.
    wait: whether to wait up to SETTLE_S seconds for a worker to end."""
    workers = loader_workers(loader)
    if wait and workers:
        ready = multiprocessing.connection.wait([worker.sentinel for worker in workers], timeout=SETTLE_S)
        for worker in workers:
            if worker.sentinel in ready:  # its files are closed, but its exit code may not be available yet
                worker.join(SETTLE_S)
    return [(worker.pid, worker.exitcode) for worker in workers if worker.exitcode is not None]
