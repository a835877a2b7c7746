"""Explain loading failures of which torch only reports that a worker exited: how it ended, and what to set. No
torch."""

import itertools
import multiprocessing.connection
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from imagenet_ddp.data.loading.stall_watchdog import StallWatchdog
from imagenet_ddp.data.loading.worker_processes import (
    NOT_SENT,
    loader_workers,
    preserve_sigchld_handler,
    raise_open_file_limit,
)
from imagenet_ddp.errors import RunError

SETTLE_S = 2.0  # from the end of a process until its parent can read the exit code
T = TypeVar("T")

PIN_THREAD = "Pin memory thread exited"  # it receives the batches, with data.pin_memory

_CRASHES = ("SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE")


def explain_failures(start: Callable[[], Iterable[T]], loader: Any, watchdog: StallWatchdog) -> Iterator[T]:
    """Yield the batches of start(), which may start the loader's workers. Raises RunError if the reason for a failure
    is known. watchdog: of this loader, not started."""
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
    """Return the reason for an error raised by a DataLoader; None if no worker caused it."""
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
    # several may have ended, one because of another: the most informative cause comes first
    name = next((name for name in ("SIGKILL", "SIGBUS", *_CRASHES) if name in by_name), next(iter(by_name)))
    pid, code = by_name[name]
    ended = f"was killed by {name}" if name else f"ended with exit code {code}"
    ended = f"DataLoader worker {pid} (one of {loader.num_workers}) {ended}"
    if name == "SIGKILL":
        return f"{ended}, most often because memory ran out. Hint: {_less(loader)}, or ask for more memory."
    if name == "SIGBUS":
        return (
            f"{ended}: /dev/shm is full, or a packed file was cut off. Hint: {_more_shm(loader)}; prepare=check "
            "data=packed finds such a file."
        )
    if name in _CRASHES:
        return (
            f"{ended}: a library crashed, most likely on an image. Hint: `python -m imagenet_ddp.prepare "
            "prepare=check` with the same data finds such a file; data.decoder=pillow is another decoder."
        )
    if code == NOT_SENT:
        return (
            f"{ended}: it could not pass a batch on, for the reason above. Hint: where /dev/shm is full, "
            f"{_more_shm(loader)}; if too many files are open, a higher limit (ulimit -n)."
        )
    return (
        f"{ended}; its own message, if there is one, is above. "
        "Hint: data.num_workers=0 shows an error in the training process."
    )


def _from_text(text: str, loader: Any) -> str:
    """Explain an error raised by a worker, or by the process receiving its batches."""
    if "Too many open files" in text or "items of ancdata" in text:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        more = f"ulimit -n {hard} before the command" if hard > soft else "a higher limit (ulimit -Hn)"
        return (
            f"too many open files: each batch in transit is several, and this process may open {soft} (ulimit "
            f"-n). Hint: {more}, or {_less(loader)}."
        )
    # without the words "shared memory" from the semaphores that a loader of this process makes first
    where = "shared memory" in text or text.startswith("OSError: [Errno 28] No space left on device")
    if where and any(words in text for words in ("No space left", "Cannot allocate memory")):
        return f"DataLoader workers cannot pass batches on, because /dev/shm is full. Hint: {_more_shm(loader)}."
    if PIN_THREAD in text:
        return (
            "the thread that receives batches from the DataLoader workers has ended; its own message stands above. "
            f"Hint: where too many files are open, a higher limit (ulimit -n), or {_less(loader)}."
        )
    return ""


def _more_shm(loader: Any) -> str:
    return f"docker run --ipc=host (or --shm-size=8g), {_less(loader)}"


def _exits(loader: Any, *, wait: bool) -> list[tuple[int, int]]:
    """Return (pid, exit code; -n: killed by signal n) of the workers that have ended."""
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


def signal_name(code: int) -> str:
    """Return the name of the signal that corresponds to an exit code; "" for none."""
    try:
        return signal.Signals(-code).name if code < 0 else ""
    except ValueError:
        return f"signal {-code}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
