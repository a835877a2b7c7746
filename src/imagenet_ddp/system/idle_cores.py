"""Count the CPU cores that a job may use now: those of this process that neither other programs nor the user's other
trainings use. Does not import torch.

The load is measured while torch is imported, which takes seconds anyway. A measurement alone would give all cores to
each of several trainings that start together, so a training also holds a locked file in a private folder, with the
number of cores that it has taken. The system releases the lock when the process ends, however it ends.
"""

import fcntl
import json
import os
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_ddp.system.cpu_cores import container_cpu_s, cpu_quota, num_cores, visible_cores
from imagenet_ddp.system.files import cache_dir, make_private
from imagenet_ddp.system.text import count_noun

SAMPLE_S = 0.2  # shortest measurement: the system counts in steps of 0.01 s
MOST_TRIES = 100  # of locking a new file, which another process may lock for a moment to see whether it is in use
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Cores:
    """A number of cores for the processes of a job on one machine, at least 1, and the reason for it."""

    num: int
    reason: str


# ---- what other programs use -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CpuTimes:
    """CPU seconds used until a moment, which time.monotonic() gives as at_s.

    busy_s: of the cores in this process's affinity mask, by all programs of the machine. own_s: by this process.
    container_s: by the container whose quota limits this process; None without one.
    """

    at_s: float
    busy_s: float
    own_s: float
    container_s: float | None = None

    @classmethod
    def read(cls) -> "CpuTimes | None":
        """Return None on a system that does not say."""
        import psutil  # not needed for --help

        try:
            every: Sequence[Any] = psutil.cpu_times(percpu=True)
        except (OSError, RuntimeError, NotImplementedError, psutil.Error):
            return None
        times = [every[core] for core in visible_cores() if core < len(every)]
        if not times or not any(map(sum, times)):  # some sandboxes write zeros
            return None
        # guest time is part of user time, and a core that only waits for a disk is free
        fields = ("user", "nice", "system", "irq", "softirq", "steal")
        busy_s = sum(getattr(each, field, 0.0) for each in times for field in fields)
        return cls(time.monotonic(), busy_s, time.process_time(), container_cpu_s())


def cores_used_by_others(before: CpuTimes, after: CpuTimes, num_alike: int) -> float:
    """Return the mean number of visible cores that other programs used. num_alike: number of this job's processes on
    these cores, which do the same as this one."""
    own_s = (after.own_s - before.own_s) * num_alike
    return max(0.0, after.busy_s - before.busy_s - own_s) / (after.at_s - before.at_s)


def idle_cores(before: CpuTimes, after: CpuTimes, num_alike: int = 1) -> float:
    """Return the mean number of cores that were free for this job. A container's quota is shared by the programs in
    it, whatever the other programs of the machine do."""
    idle = len(visible_cores()) - cores_used_by_others(before, after, num_alike)
    quota = cpu_quota()
    if quota is not None and before.container_s is not None and after.container_s is not None:
        own_s = (after.own_s - before.own_s) * num_alike
        used = max(0.0, after.container_s - before.container_s - own_s) / (after.at_s - before.at_s)
        return min(idle, quota - used)
    return idle if quota is None else min(idle, quota)


_measured: tuple[CpuTimes, CpuTimes] | None = None


@contextmanager
def measure_while_importing() -> Generator[None]:
    """Measure the load of the machine during the block, if it is the first to import torch."""
    global _measured
    before = CpuTimes.read() if "torch" not in sys.modules else None
    yield
    if before is not None and (after := CpuTimes.read()) and after.at_s - before.at_s >= SAMPLE_S:
        _measured = before, after


def _measure() -> tuple[CpuTimes, CpuTimes] | None:
    """Return the measurement of the imports, else measure for SAMPLE_S seconds; None if that is not possible."""
    global _measured
    if _measured is None and (before := CpuTimes.read()):
        time.sleep(SAMPLE_S)
        if after := CpuTimes.read():
            _measured = before, after
    return _measured


# ---- the user's other trainings --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Other:
    """Another training of this user on this machine. cores: numbers of the cores that it may use. num_taken: how many
    of them it uses; None while it starts."""

    cores: frozenset[int]
    num_taken: int | None


class Trainings:
    """The user's trainings on this machine: one locked file for each, in a folder that only the user can write to."""

    def __init__(self, folder: Path):
        """Create the folder. Raises OSError if it cannot be created, or belongs to others."""
        make_private(folder)
        self._folder = folder
        self._own, self._path = self._lock_new_file()
        self.take(None)

    def _lock_new_file(self) -> tuple[int, Path]:
        for _ in range(MOST_TRIES):
            number, name = tempfile.mkstemp(dir=self._folder)  # not inherited by programs that this process starts
            with suppress(OSError):  # another process looked at the file before it was locked, and removed it
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(number), os.stat(name)):  # noqa: PTH116 (beside fstat)
                    return number, Path(name)
            os.close(number)
            Path(name).unlink(missing_ok=True)
        raise OSError(f"{self._folder} does not support locks")

    def take(self, num: int | None) -> None:
        """Write how many cores this training uses; None while it starts."""
        content = json.dumps({"cores": sorted(visible_cores()), "num_taken": num}).encode()
        os.ftruncate(self._own, 0)
        os.pwrite(self._own, content, 0)

    def others(self) -> list[Other]:
        """Return the other trainings that may use one of this process's cores. Remove the files of those that have
        ended."""
        found: list[Other] = []
        for path in self._folder.iterdir():
            if path == self._path:
                continue
            with suppress(FileNotFoundError), path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    found.append(_read_other(file.read()))
                else:
                    path.unlink(missing_ok=True)
        return [other for other in found if other.cores & visible_cores()]


def _read_other(content: bytes) -> Other:
    try:
        stored = json.loads(content)
        return Other(frozenset(stored["cores"]), stored["num_taken"])
    except (ValueError, KeyError, TypeError):  # it is just being written
        return Other(visible_cores(), None)


_trainings: Trainings | None = None


def register() -> None:
    """Let the user's other trainings see that this one starts. Without a private folder, or on a disk without locks,
    they only see its load."""
    global _trainings
    with suppress(OSError, RuntimeError):  # RuntimeError: no home folder
        # of this machine, because the home folder may be on a network
        boot = BOOT_ID.read_text(encoding="ascii").strip() if BOOT_ID.exists() else "this-machine"
        _trainings = _trainings or Trainings(cache_dir(os.environ) / "trainings" / boot)


def take(num: int) -> None:
    """Let the user's other trainings see how many cores this one uses."""
    if _trainings is not None:
        with suppress(OSError):
            _trainings.take(num)


# ---- the number ------------------------------------------------------------------------------------------------------


_counted: Cores | None = None


def count_cores(num_alike: int = 1) -> Cores:
    """Return the cores for this job on this machine, and remember them: all jobs of a sweep get the same.

    num_alike: number of this job's processes on these cores, which start at the same time as this one.
    """
    global _counted
    if _counted is None:
        measured = _measure()
        others: list[Other] = []
        if _trainings is not None:
            with suppress(OSError):
                others = _trainings.others()
        _counted = choose_cores(num_cores(), None if measured is None else idle_cores(*measured, num_alike), others)
    return _counted


def choose_cores(num: int, idle: float | None, others: Sequence[Other]) -> Cores:
    """Return the smaller of two numbers: the cores that are idle, and this job's part of those that the user's other
    trainings have not taken, which it shares equally with those that are starting.

    num: cores that this process may use. idle: how many of them are idle; None if unknown.
    """
    free = num - sum(other.num_taken or 0 for other in others)
    num_starting = 1 + sum(other.num_taken is None for other in others)
    part = max(1, free // num_starting)
    measured = num if idle is None else max(1, min(num, round(idle)))
    cores = count_noun(num, "core")
    if part < num and part <= measured:
        whose = f"{count_noun(len(others), 'other training')} of yours"
        return Cores(part, f"shares {cores} with {whose}")
    if idle is None:
        return Cores(part, f"{cores}, whose load cannot be measured here")
    return Cores(measured, f"{cores}, idle" if round(idle) >= num else f"{max(idle, 0):.1f} of {cores} idle")
