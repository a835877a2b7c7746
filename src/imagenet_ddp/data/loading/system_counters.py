"""Read what Linux counts: out-of-memory kills, memory limits, room in /dev/shm, states of processes. No torch."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Letters of /proc/PID/stat, and what one or several processes do.
STATES = {
    "T": ("is stopped", "are stopped"),
    "t": ("is held by a debugger", "are held by a debugger"),
    "D": ("waits for a disk", "wait for a disk"),
    "Z": ("has ended", "have ended"),
    "R": ("works", "work"),
    "S": ("sleeps", "sleep"),
}
UNKNOWN = ("does not answer", "do not answer")
MAX_PIDS = 5  # named for each state


@dataclass(frozen=True)
class SystemCounters:
    """Counters of this machine; tests give other folders."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    shm: Path = Path("/dev/shm")

    def oom_kills(self) -> dict[str, int]:
        """Count processes killed for lack of memory: in this control group ("job") and on this "machine", as far as
        the kernel counts them."""
        counters = [("machine", self.proc / "vmstat")]
        for folder in self._memory_folders()[:1]:
            counters += [("job", folder / "memory.events"), ("job", folder / "memory.oom_control")]
        return {
            name: int(line.split()[1])
            for name, path in counters
            for line in _lines(path)
            if line.startswith("oom_kill ")
        }

    def memory_limit_bytes(self) -> int | None:
        """Return the smallest limit of this process's control groups; None: no limit is known."""
        names = ("memory.max", "memory.limit_in_bytes")
        lines = [line for folder in self._memory_folders() for name in names for line in _lines(folder / name)]
        limits = [int(line) for line in lines if line.isdigit()]
        return min((limit for limit in limits if limit < 2**60), default=None)  # version 1: about 2**63 for none

    def _memory_folders(self) -> list[Path]:
        """Return this process's memory control group and those above it, of version 2, or where there is none, 1."""
        for line in reversed(_lines(self.proc / "self" / "cgroup")):  # "0::/user.slice/a", "4:memory:/slurm/job_1"
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number != "0" and "memory" not in controllers.split(","):
                continue
            top = self.cgroup if number == "0" else self.cgroup / "memory"
            folder = top / path.lstrip("/")
            # in a container the path may be the host's, and its own group lies at the top
            folders = [each for each in (folder, *folder.parents) if each.is_relative_to(top)]
            if found := [each for each in folders if any(each.glob("memory.*"))]:
                return found
        return []

    def shm_bytes(self) -> tuple[int, int]:
        """Return the free and the total room for shared memory, (0, 0) where there is none."""
        try:
            stat = os.statvfs(self.shm)
        except OSError:
            return 0, 0
        return stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize


def process_state(pid: int, proc: Path = Path("/proc")) -> str:
    """Return a key of STATES, or "" where it is not known."""
    try:
        return (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def process_states(pids: Iterable[int], proc: Path = Path("/proc")) -> str:
    """Describe what each process does, stopped ones first: "8803 is stopped; 8804, 8805 sleep"."""
    by_state: dict[str, list[int]] = {}
    for pid in pids:
        by_state.setdefault(process_state(pid, proc), []).append(pid)
    order = sorted(by_state, key=lambda letter: [*STATES, letter].index(letter))
    return "; ".join(_describe(by_state[letter], *STATES.get(letter, UNKNOWN)) for letter in order)


def _describe(pids: Sequence[int], one: str, several: str) -> str:
    more = f" and {len(pids) - MAX_PIDS} more" if len(pids) > MAX_PIDS else ""
    return f"{', '.join(map(str, pids[:MAX_PIDS]))}{more} {several if len(pids) > 1 else one}"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
