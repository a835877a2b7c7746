"""Report a batch that does not arrive, and say how a loader process ended, for which torch reports only that it exited.
Does not import torch."""

import multiprocessing.connection
import os
import resource
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from imagenet_ddp.data.loader_processes import NOT_SENT, loader_workers, raise_open_file_limit
from imagenet_ddp.errors import RunError, causes
from imagenet_ddp.system.console import Say, print_message
from imagenet_ddp.system.process import exit_at_once

FIRST_S = 60.0  # wait before the first message; each further message comes after twice the wait
POLL_S = 5.0
TIMEOUT_S = 1800.0
LAST_S = 30.0  # longest time until the loader raises an error for workers that were killed
SETTLE_S = 2.0  # longest time from the end of a process until its parent can read the exit code
PIN_THREAD = "Pin memory thread exited"  # with data.pin_memory, this thread receives the batches
T = TypeVar("T")


class StallWatchdog:
    """Reports that a process waits for a batch, and after timeout_s ends the wait.

    The training process marks the start and the end of each wait with an assignment, and a thread checks the mark every
    few seconds. After timeout_s, the thread kills the workers, which raises an error in the process that waits for
    them. If no error is raised, the thread ends this process, because nothing else interrupts a read from a disk that
    does not respond.
    """

    def __init__(
        self,
        loader: Any,
        location: str = "",
        who: str = "The training",
        say: Say = print_message,
        timeout_s: float = TIMEOUT_S,
    ):
        """loader: a DataLoader, or a loader without processes. location: folder or address of the images, and who: the
        waiting process, for messages. timeout_s: in seconds; 0: no timeout."""
        # weak, because the thread would otherwise keep the loader alive, and Python would wait for its processes to end
        self._loader = weakref.ref(loader)
        self._location, self._who, self._say, self._timeout_s = location, who, say, timeout_s
        self.failure = ""  # the error message, set when the timeout has passed
        self._since: float | None = None  # start of the current wait
        self._ended = threading.Event()

    def watch(self, start: Callable[[], Iterable[T]]) -> Iterator[T]:
        """Yield the batches of start(), which may start the loader's workers. Raises RunError if the reason for a
        failure is known."""
        raise_open_file_limit()
        threading.Thread(target=self._run, name="stall watchdog", daemon=True).start()
        try:
            self._since = time.monotonic()
            handler = signal.getsignal(signal.SIGCHLD)
            try:
                batches = iter(start())
            except OSError as error:
                _kill_started(error)
                raise
            if threading.current_thread() is threading.main_thread():
                # torch's handler would raise an error in the middle of a step when a worker ends. The loader itself
                # checks for that every 5 s while it waits for a batch.
                signal.signal(signal.SIGCHLD, handler or signal.SIG_DFL)
            for batch in batches:
                self._since = None
                yield batch
                self._since = time.monotonic()
        except Exception as error:
            if message := self.failure or explain(error, self._loader()):
                raise RunError(message) from error
            raise
        finally:
            self._since = None
            self._ended.set()

    def _run(self) -> None:
        first_s = min(FIRST_S, self._timeout_s / 4) if self._timeout_s > 0 else FIRST_S
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
                end = f"after {self._timeout_s:g} s (data.loader_timeout_s), or " if self._timeout_s > 0 else ""
                self._say(
                    f"{self._who} has waited {waited_s:.0f} s for a batch of images{self._source()}. "
                    f"The run ends {end}at the third Ctrl-C at the latest."
                )
            if 0 < self._timeout_s <= waited_s:
                self._fail(since)
                return

    def _source(self) -> str:
        pids = [worker.pid for worker in loader_workers(self._loader())] or [os.getpid()]
        folder = f" from {self._location}" if self._location else ""
        return f"{folder} (process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))})"

    def _fail(self, since: float) -> None:
        self.failure = (
            f"timed out after {self._timeout_s:g} s (data.loader_timeout_s): {self._who} got no batch of "
            f"images{self._source()}. Hint: check that the disk of the images still responds, and that no process is "
            "stopped (kill -CONT resumes it). If the disk is only slow, set a larger data.loader_timeout_s."
        )
        workers = loader_workers(self._loader())
        for worker in workers:
            worker.kill()  # SIGKILL also ends a stopped worker
        if workers and self._ended.wait(LAST_S):
            return
        if self._since == since:
            print_message(self.failure)
            exit_at_once(1)


def _kill_started(error: OSError) -> None:
    """End the workers of an iterator whose start raised this error. torch's own clean-up needs attributes that are set
    last, and would print a traceback, as would a worker that starts after the training process has ended."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        iterator: Any = frame.f_locals.get("self")
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown = True
            for worker in getattr(iterator, "_workers", []):
                worker.kill()


def explain(error: BaseException, loader: Any) -> str:
    """Return the reason for an error raised by a DataLoader, or "" if no worker caused it or the message is already for
    the user."""
    count = getattr(loader, "num_workers", 0)
    if isinstance(error, RunError) or not count:
        return ""
    text = "\n".join(f"{type(each).__name__}: {each}" for each in causes(error))
    less = f"data.num_workers={count // 2} (now {count}) or a smaller data.batch_size"
    more_shm = f"start the container with docker run --ipc=host (or --shm-size=8g), or set {less}"
    check = "run `python -m imagenet_ddp.prepare prepare=check` with the same data options"
    of_worker = "DataLoader worker" in text or PIN_THREAD in text or isinstance(error, OSError | EOFError)
    if ended := _failed_workers(loader, wait=of_worker):
        crashed = "A library crashed, most likely on an image"
        pillow = f"{check} to find the image, or set data.decoder=pillow to use another decoder"
        reasons = {  # the most informative first, because one worker may have ended because of another
            -signal.SIGKILL: ("Memory has usually run out", f"set {less}, or request more memory"),
            -signal.SIGBUS: (
                "/dev/shm is full, or a packed file was truncated",
                f"{more_shm}. To find a truncated file, {check}",
            ),
            -signal.SIGSEGV: (crashed, pillow),
            -signal.SIGABRT: (crashed, pillow),
            -signal.SIGILL: (crashed, pillow),
            -signal.SIGFPE: (crashed, pillow),
            NOT_SENT: (
                "It could not send a batch, for the reason printed above",
                f"if /dev/shm is full, {more_shm}. If too many files are open, raise the limit (ulimit -n)",
            ),
        }
        code = next((code for code in reasons if code in ended), next(iter(ended)))
        why, hint = reasons.get(code) or (
            "Its own error message, if any, is printed above",
            "set data.num_workers=0 to get the error in the training process",
        )
        how = f"was killed by {signal_name(code)}" if code < 0 else f"ended with exit code {code}"
        return f"DataLoader worker {ended[code]} (one of {count}) {how}. {why}. Hint: {hint}."
    if "Too many open files" in text or "items of ancdata" in text:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        more = f"run `ulimit -n {hard}` before the command" if hard > soft else "raise the hard limit (ulimit -Hn)"
        return (
            f"too many open files: each batch in transit needs several, and this process may open {soft} (ulimit "
            f"-n). Hint: {more}, or set {less}."
        )
    # the loader first makes semaphores in this process, whose error message lacks the words "shared memory"
    where = "shared memory" in text or text.startswith("OSError: [Errno 28] No space left on device")
    if where and ("No space left" in text or "Cannot allocate memory" in text):
        return f"DataLoader workers cannot send batches, because /dev/shm is full. Hint: {more_shm}."
    return ""


def _failed_workers(loader: Any, *, wait: bool) -> dict[int, int]:
    """Return exit code -> process id of the workers that have ended. An exit code -n means that signal n killed the
    worker. wait: wait up to SETTLE_S seconds for a worker to end."""
    workers = loader_workers(loader)
    if wait and workers:
        ready = multiprocessing.connection.wait([worker.sentinel for worker in workers], timeout=SETTLE_S)
        for worker in workers:
            if worker.sentinel in ready:  # its files are closed, but its exit code may not be available yet
                worker.join(SETTLE_S)
    # code 0 is that of a library that ended the process; without wait, another error is being explained
    ended = [worker for worker in workers if worker.exitcode is not None and (wait or worker.exitcode)]
    return {worker.exitcode: worker.pid for worker in ended}


def signal_name(code: int) -> str:
    """Return the name of the signal that corresponds to an exit code, or "" if there is none."""
    try:
        return signal.Signals(-code).name if code < 0 else ""
    except ValueError:
        return f"signal {-code}"
