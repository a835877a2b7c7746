"""Why loading failed, where torch only says that a loader process is gone: what the system knows of its end, of memory,
of /dev/shm and of open files, and what to set. No torch here."""

import multiprocessing.connection
import os
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from imagenet_ddp.data.loading.stall_watchdog import StallWatchdog
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
SETTLE_S = 2.0  # until the system has told the end of a process to the one that waits for it
T = TypeVar("T")

_END: Any = object()
_CRASHES = ("SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE")


@dataclass(frozen=True)
class SystemCounters:
    """What the system counts. Other places are for tests."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    shm: Path = Path("/dev/shm")

    def oom_kills(self) -> dict[str, int]:
        """Processes that the kernel has killed for lack of memory so far: in this one's control group ("job"), on the
        machine. Left out where it does not count them."""
        counters = [("machine", self.proc / "vmstat")]
        for folder in self._memory_folders()[:1]:
            counters += [("job", folder / "memory.events"), ("job", folder / "memory.oom_control")]
        found = {}
        for name, path in counters:
            for line in _lines(path):
                if line.startswith("oom_kill "):
                    found[name] = int(line.split()[1])
        return found

    def memory_limit_bytes(self) -> int | None:
        """The least that a control group above this process allows; None: no limit is known."""
        limits = []
        for folder in self._memory_folders():
            for name in ("memory.max", "memory.limit_in_bytes"):
                limits += [int(line) for line in _lines(folder / name) if line.isdigit()]
        # without a limit, version 1 says about 2**63
        return min((limit for limit in limits if limit < 2**60), default=None)

    def _memory_folders(self) -> list[Path]:
        """This process's control group for memory and those above it; version 2, or where there is none, 1."""
        for line in reversed(_lines(self.proc / "self" / "cgroup")):  # "0::/user.slice/a", "4:memory:/slurm/job_1"
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number != "0" and "memory" not in controllers.split(","):
                continue
            for top in [self.cgroup] if number == "0" else [self.cgroup / "memory"]:
                folder = top / path.lstrip("/")
                # in a container the path may be the host's, and its own group lies at the top
                folders = [each for each in (folder, *folder.parents) if each.is_relative_to(top)]
                there = [each for each in folders if any(each.glob("memory.*"))]
                if there:
                    return there
        return []

    def shm_bytes(self) -> tuple[int, int] | None:
        """(free, all) of where processes share memory; None: no such place."""
        try:
            stat = os.statvfs(self.shm)
        except OSError:
            return None
        return stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize


class FailureExplainer:
    """Over one loader, from before its processes start."""

    def __init__(self, machine: SystemCounters | None = None):
        self._machine = machine or SystemCounters()
        self._before = self._machine.oom_kills()

    def explain(self, error: BaseException, loader: Any) -> RunError | None:
        """loader: a DataLoader, out of which error came. None: it is something else than a matter of processes."""
        if isinstance(error, RunError) or not getattr(loader, "num_workers", 0):
            return None
        text = "\n".join(f"{type(each).__name__}: {each}" for each in _chain(error))
        ends = _ends(loader, wait="DataLoader worker" in text or isinstance(error, OSError | EOFError))
        said = _by_end(ends, loader, self) or _by_text(text, loader, self._machine)
        return RunError(said) if said else None

    def oom_evidence(self) -> str:
        """Counted since this watch began; "" where nothing was."""
        for name, where in (("job", "of this job"), ("machine", "on this machine")):
            number = self._machine.oom_kills().get(name, 0) - self._before.get(name, 0)
            if number > 0:
                limit = self._machine.memory_limit_bytes()
                limited = f", which may use {limit / 2**30:.1f} GiB" if limit and name == "job" else ""
                killed = count_noun(number, "process")
                return f"meanwhile the kernel has killed {killed} {where} for lack of memory{limited}"
        return ""

    @property
    def machine(self) -> SystemCounters:
        return self._machine


def explain_failures(start: Callable[[], Iterable[T]], loader: Any, watchdog: StallWatchdog) -> Iterator[T]:
    """The batches of start(), which may start loader's processes; RunError where loading fails for a known reason.
    watchdog: of this loader and these batches, not begun."""
    watch = FailureExplainer()
    raise_open_file_limit()

    def batches() -> Iterator[T]:
        with preserve_sigchld_handler():
            found = iter(start())
            first = next(found, _END)
        if first is not _END:
            yield first
        yield from found

    try:
        yield from watchdog.through(batches)
    except Exception as error:
        known = RunError(watchdog.failure) if watchdog.failure else watch.explain(error, loader)
        if known is None:
            raise
        raise known from error


def _ends(loader: Any, *, wait: bool) -> list[tuple[int, int]]:
    """(pid, exit code; -n: killed by signal n) of the loader processes that have ended."""
    workers = loader_workers(loader)
    if wait and workers:
        ready = multiprocessing.connection.wait([worker.sentinel for worker in workers], timeout=SETTLE_S)
        for worker in workers:
            if worker.sentinel in ready:  # its files are closed, but its exit code may still be on the way
                worker.join(SETTLE_S)
    return [(worker.pid, worker.exitcode) for worker in workers if worker.exitcode is not None]


def _by_end(ends: list[tuple[int, int]], loader: Any, watch: FailureExplainer) -> str:
    by_signal = {_signal(code): (pid, code) for pid, code in reversed(ends) if code}
    if not by_signal:
        return ""
    # what was killed last may have died of the first: the cause that says most comes first
    name = next((name for name in ("SIGKILL", "SIGBUS", *_CRASHES) if name in by_signal), next(iter(by_signal)))
    pid, code = by_signal[name]
    who = f"loader process {pid} (one of {loader.num_workers}) must live as long as the training"
    if name == "SIGKILL":
        evidence = watch.oom_evidence()
        if evidence:
            return f"{who}, but was killed by SIGKILL; {evidence}. Hint: {_less(loader)}, or ask for more memory."
        return (
            f"{who}, but was killed by SIGKILL, and the kernel's counters show no lack of memory: somebody, or a batch "
            f"system that watches memory itself, killed it. Hint: look at the batch system's log; {_less(loader)} need "
            "less memory."
        )
    if name == "SIGBUS" and _has_room(loader, watch.machine):
        return (
            f"{who}, but was killed by SIGBUS, and {watch.machine.shm} has room: a file that is mapped into memory "
            "(packed raw pixels) was shortened, or its disk failed. Hint: look at the disk of data.root, and have "
            "prepare=check data=packed look at every image."
        )
    if name == "SIGBUS":
        return f"{who}, but was killed by SIGBUS, {_shm(loader, watch.machine)}"
    if name in _CRASHES:
        return (
            f"{who}, but was killed by {name}: a library crashed, most likely on an image. Hint: `python -m "
            "imagenet_ddp.prepare prepare=check` with the same data finds such a file; data.decoder=pillow is another "
            "decoder."
        )
    if code - SENDING_EXIT in SENDING:
        return _by_text(f"shared memory: {SENDING[code - SENDING_EXIT]}", loader, watch.machine)
    if name:
        return f"{who}, but was killed by {name}. Hint: who sent that signal? Stop the training process instead."
    return (
        f"{who}, but ended with exit code {code}; what it said stands above. Hint: data.num_workers=0 shows the error "
        "in the training process."
    )


def _by_text(text: str, loader: Any, machine: SystemCounters) -> str:
    """Errors that a loader process, or the receiving side, has raised itself."""
    if "Too many open files" in text or "items of ancdata" in text:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        more = f"ulimit -n {hard} before the command" if hard > soft else "a higher limit of open files (ulimit -Hn)"
        return (
            f"a process must hold every batch on its way as open files, but may open {soft} (ulimit -n). "
            f"Hint: {more}, or {_less(loader)}."
        )
    in_shm = any(words in text for words in ("shared memory", "/torch_", "shm_open"))
    if in_shm and ("No space left" in text or "Cannot allocate memory" in text or "to allocate" in text):
        return f"loader processes must hand over batches in shared memory, but cannot {_shm(loader, machine)}"
    if in_shm and any(words in text for words in ("unable to open", "Permission denied", "No such file")):
        return (
            f"loader processes must hand over batches in {machine.shm}, but cannot open shared memory "
            f"there. Hint: mount a tmpfs on {machine.shm} that this user may write to, or data.num_workers=0."
        )
    if any(words in text for words in ("MemoryError", "Cannot allocate memory", "can't allocate memory")):
        return f"loading must find memory, but the system gives no more. Hint: {_less(loader)}."
    return ""


def _shm(loader: Any, machine: SystemCounters) -> str:
    room = machine.shm_bytes()
    there = f"{room[0] / MIB:.0f} of {room[1] / MIB:.0f} MiB are free" if room else "there is no such place"
    size = _batch_bytes(loader)
    number = loader.num_workers * (loader.prefetch_factor or 2)
    need = f"; {number} batches of {size / MIB:.1f} MiB are on their way at a time" if size else ""
    least = max(64, 2 * number * (size or 0) // MIB)
    less = _less(loader) + (", or data.num_workers=0" if loader.num_workers > 1 else "")
    return (
        f"because {machine.shm} is full: {there}{need}. Hint: docker run --shm-size={least}m (or --ipc=host), {less}."
    )


def _has_room(loader: Any, machine: SystemCounters) -> bool:
    """Whether all batches on their way would find room where processes share memory, now and with much to spare."""
    free, whole = machine.shm_bytes() or (0, 0)
    on_their_way = loader.num_workers * (loader.prefetch_factor or 2) * (_batch_bytes(loader) or 0)
    return free > whole / 2 and free > on_their_way


def _batch_bytes(loader: Any) -> int | None:
    """uint8, three colours; None: not a loader of this project."""
    try:
        sampler = loader.batch_sampler
        return sampler.batch_size * loader.dataset.transform.size(sampler.epoch) ** 2 * 3
    except (AttributeError, TypeError):
        return None


def _less(loader: Any) -> str:
    number = loader.num_workers
    batch = getattr(loader.batch_sampler, "batch_size", None)
    smaller = f"data.batch_size={max(batch // 2, 1)} (now {batch})" if batch else "a smaller data.batch_size"
    return f"data.num_workers={number // 2} (now {number}) or {smaller}"


def _signal(code: int) -> str:
    """ "": it was none."""
    if code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
