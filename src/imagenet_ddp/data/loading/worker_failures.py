"""Explain why loading failed where torch only reports that a worker exited: how it ended, and what to set. No torch."""

import multiprocessing.connection
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from imagenet_ddp.data.loading.stall_watchdog import StallWatchdog
from imagenet_ddp.data.loading.system_counters import SystemCounters
from imagenet_ddp.data.loading.worker_processes import (
    SENDING,
    SENDING_EXIT,
    loader_workers,
    preserve_sigchld_handler,
    raise_open_file_limit,
)
from imagenet_ddp.errors import RunError
from imagenet_ddp.system.text import count_noun

MIB = 2**20
SETTLE_S = 2.0  # from the end of a process until its parent knows the exit code
T = TypeVar("T")

_END: Any = object()
_CRASHES = ("SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE")


def explain_failures(start: Callable[[], Iterable[T]], loader: Any, watchdog: StallWatchdog) -> Iterator[T]:
    """Yield the batches of start(), which may start loader's workers. Raises RunError where the reason of a failure is
    known. watchdog: of this loader, not started."""
    explainer = FailureExplainer()
    raise_open_file_limit()

    def batches() -> Iterator[T]:
        with preserve_sigchld_handler():
            found = iter(start())
            first = next(found, _END)
        if first is not _END:
            yield first
        yield from found

    try:
        yield from watchdog.watch(batches)
    except Exception as error:
        known = RunError(watchdog.failure) if watchdog.failure else explainer.explain(error, loader)
        if known is None:
            raise
        raise known from error


class FailureExplainer:
    """Compares the system's counters with those from before the workers started."""

    def __init__(self, counters: SystemCounters | None = None):
        self._counters = counters or SystemCounters()
        self._before = self._counters.oom_kills()

    def explain(self, error: BaseException, loader: Any) -> RunError | None:
        """Return the reason of an error that came out of a DataLoader; None: no worker is its reason."""
        if isinstance(error, RunError) or not getattr(loader, "num_workers", 0):
            return None
        text = "\n".join(f"{type(each).__name__}: {each}" for each in _causes(error))
        exits = _exits(loader, wait="DataLoader worker" in text or isinstance(error, OSError | EOFError))
        message = self._from_exits(exits, loader) or self._from_text(text, loader)
        return RunError(message) if message else None

    def _oom_evidence(self) -> str:
        for name, where in (("job", "of this job"), ("machine", "on this machine")):
            number = self._counters.oom_kills().get(name, 0) - self._before.get(name, 0)
            if number > 0:
                limit = self._counters.memory_limit_bytes()
                limited = f", which may use {limit / 2**30:.1f} GiB" if limit and name == "job" else ""
                killed = count_noun(number, "process")
                return f"meanwhile the kernel has killed {killed} {where} for lack of memory{limited}"
        return ""

    def _from_exits(self, exits: list[tuple[int, int]], loader: Any) -> str:
        by_name = {_signal_name(code): (pid, code) for pid, code in reversed(exits) if code}
        if not by_name:
            return ""
        # several may have ended, one because of another: the most telling cause comes first
        name = next((name for name in ("SIGKILL", "SIGBUS", *_CRASHES) if name in by_name), next(iter(by_name)))
        pid, code = by_name[name]
        killed = f"DataLoader worker {pid} (one of {loader.num_workers}) was killed by {name}"
        if name == "SIGKILL" and (evidence := self._oom_evidence()):
            return f"{killed}; {evidence}. Hint: {_less(loader)}, or ask for more memory."
        if name == "SIGKILL":
            return (
                f"{killed}, and the kernel's counters show no lack of memory: somebody, or a batch system that watches "
                f"memory itself, killed it. Hint: look at the batch system's log; {_less(loader)} need less memory."
            )
        if name == "SIGBUS" and self._has_room(loader):
            return (
                f"{killed}, and {self._counters.shm} has room: a file that is mapped into memory (packed raw pixels) "
                "was shortened, or its disk failed. Hint: look at the disk of data.root, and check every image with "
                "prepare=check data=packed."
            )
        if name == "SIGBUS":
            return f"{killed}, because {self._full_shm(loader)}"
        if name in _CRASHES:
            return (
                f"{killed}: a library crashed, most likely on an image. Hint: `python -m imagenet_ddp.prepare "
                "prepare=check` with the same data finds such a file; data.decoder=pillow is another decoder."
            )
        if code - SENDING_EXIT in SENDING:
            return self._from_text(f"shared memory: {SENDING[code - SENDING_EXIT]}", loader)
        if name:
            return f"{killed}. Hint: who sent that signal? Stop the training process instead."
        return (
            f"DataLoader worker {pid} (one of {loader.num_workers}) ended with exit code {code}; its own message "
            "stands above. Hint: data.num_workers=0 shows the error in the training process."
        )

    def _from_text(self, text: str, loader: Any) -> str:
        """Explain an error that a worker, or the process receiving its batches, has raised itself."""
        if "Too many open files" in text or "items of ancdata" in text:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            more = f"ulimit -n {hard} before the command" if hard > soft else "a higher limit (ulimit -Hn)"
            return (
                f"too many open files: each batch in transit is several, and this process may open {soft} (ulimit "
                f"-n). Hint: {more}, or {_less(loader)}."
            )
        in_shm = any(words in text for words in ("shared memory", "/torch_", "shm_open"))
        if in_shm and any(each in text for each in ("No space left", "Cannot allocate memory", "to allocate")):
            return f"DataLoader workers cannot pass batches on, because {self._full_shm(loader)}"
        if in_shm and any(words in text for words in ("unable to open", "Permission denied", "No such file")):
            shm = self._counters.shm
            return (
                f"DataLoader workers cannot open shared memory in {shm}. Hint: mount a tmpfs on {shm} that this user "
                "may write to, or data.num_workers=0."
            )
        if any(words in text for words in ("MemoryError", "Cannot allocate memory", "can't allocate memory")):
            return f"out of memory while loading images. Hint: {_less(loader)}."
        return ""

    def _full_shm(self, loader: Any) -> str:
        free, total = self._counters.shm_bytes()
        size, number = _batch_bytes(loader), _batches_in_transit(loader)
        need = f"; {number} batches of {size / MIB:.1f} MiB are in transit at a time" if size else ""
        least = max(64, 2 * number * size // MIB)
        less = _less(loader) + (", or data.num_workers=0" if loader.num_workers > 1 else "")
        return (
            f"{self._counters.shm} is full: {free / MIB:.0f} of {total / MIB:.0f} MiB are free{need}. "
            f"Hint: docker run --shm-size={least}m (or --ipc=host), {less}."
        )

    def _has_room(self, loader: Any) -> bool:
        free, total = self._counters.shm_bytes()
        return free > total / 2 and free > _batches_in_transit(loader) * _batch_bytes(loader)


def _exits(loader: Any, *, wait: bool) -> list[tuple[int, int]]:
    """Return (pid, exit code; -n: killed by signal n) of the workers that have ended."""
    workers = loader_workers(loader)
    if wait and workers:
        ready = multiprocessing.connection.wait([worker.sentinel for worker in workers], timeout=SETTLE_S)
        for worker in workers:
            if worker.sentinel in ready:  # its files are closed, but its exit code may still be to come
                worker.join(SETTLE_S)
    return [(worker.pid, worker.exitcode) for worker in workers if worker.exitcode is not None]


def _batches_in_transit(loader: Any) -> int:
    return loader.num_workers * (loader.prefetch_factor or 2)


def _batch_bytes(loader: Any) -> int:
    """Return the size of a batch, 0 for a loader that is not of this project."""
    try:
        sampler = loader.batch_sampler
        return sampler.batch_size * loader.dataset.transform.size(sampler.epoch) ** 2 * 3
    except (AttributeError, TypeError):
        return 0


def _less(loader: Any) -> str:
    number = loader.num_workers
    batch = getattr(loader.batch_sampler, "batch_size", None)
    smaller = f"data.batch_size={max(batch // 2, 1)} (now {batch})" if batch else "a smaller data.batch_size"
    return f"data.num_workers={number // 2} (now {number}) or {smaller}"


def _signal_name(code: int) -> str:
    """Return the name of the signal that an exit code stands for, "" for none."""
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
