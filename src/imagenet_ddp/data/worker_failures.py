"""Explain loading failures for which torch reports only that a worker exited: how the worker ended, and which options
to set. This module does not import torch."""

import itertools
import multiprocessing.connection
import resource
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from imagenet_ddp.data.stall_watchdog import StallWatchdog
from imagenet_ddp.data.workers import (
    NOT_SENT,
    loader_workers,
    preserve_sigchld_handler,
    raise_open_file_limit,
    signal_name,
)
from imagenet_ddp.errors import RunError

SETTLE_S = 2.0  # longest time from the end of a process until its parent can read the exit code
T = TypeVar("T")

PIN_THREAD = "Pin memory thread exited"  # with data.pin_memory, this thread receives the batches

_CRASHES = ("SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE")


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
    text = "\n".join(f"{type(each).__name__}: {each}" for each in _causes(error))
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
    ended = f"was killed by {name}" if name else f"ended with exit code {code}"
    ended = f"DataLoader worker {pid} (one of {loader.num_workers}) {ended}"
    if name == "SIGKILL":
        return f"{ended}, usually because memory ran out. Hint: set {_less(loader)}, or request more memory."
    if name == "SIGBUS":
        return (
            f"{ended}: /dev/shm is full, or a packed file was truncated. Hint: {_more_shm(loader)}. To find a "
            "truncated file, run `python -m imagenet_ddp.prepare prepare=check data=packed data.root=FOLDER`."
        )
    if name in _CRASHES:
        return (
            f"{ended}: a library crashed, most likely on an image. Hint: run `python -m imagenet_ddp.prepare "
            "prepare=check` with the same data options to find the image, or set data.decoder=pillow to use another "
            "decoder."
        )
    if code == NOT_SENT:
        return (
            f"{ended}: it could not send a batch, for the reason printed above. Hint: if /dev/shm is full, "
            f"{_more_shm(loader)}. If too many files are open, raise the limit (ulimit -n)."
        )
    return (
        f"{ended}. Its own error message, if any, is printed above. "
        "Hint: set data.num_workers=0 to get the error in the training process."
    )


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
    if PIN_THREAD in text:
        return (
            "the thread that receives batches from the DataLoader workers has ended. Its own error message is printed "
            f"above. Hint: if too many files are open, raise the limit (ulimit -n), or set {_less(loader)}."
        )
    return ""


def _more_shm(loader: Any) -> str:
    return f"start the container with docker run --ipc=host (or --shm-size=8g), or set {_less(loader)}"


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


def _less(loader: Any) -> str:
    number = loader.num_workers
    batch = getattr(loader.batch_sampler, "batch_size", None)
    smaller = f"data.batch_size={max(batch // 2, 1)} (now {batch})" if batch else "a smaller data.batch_size"
    return f"data.num_workers={number // 2} (now {number}) or {smaller}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
