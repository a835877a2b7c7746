"""Count the CPU cores available to a process, and name the processor. Does not import torch."""

import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

CPUINFO = Path("/proc/cpuinfo")
V1_FOLDERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")  # where systems mount cgroup version 1's cpu controller


def num_cores() -> int:
    """Return the number of CPU cores available to this process: those of its affinity mask, but no more whole cores
    than the quota of its container, and at least 1."""
    cores = len(visible_cores())
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def visible_cores() -> frozenset[int]:
    """Return the numbers of the cores in this process's affinity mask, of which a container may use only a part."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the number of cores, such as 1.5, that the cgroups of this process allow (docker run --cpus, a Kubernetes
    limit, systemd's CPUQuota); None without a limit.

    A cgroup's parents limit it too. Inside a container, the paths in /proc/self/cgroup may be those of the host, which
    do not exist; the container's own cgroup is then at the root. root: folder that contains proc and sys.
    """
    return min((quota for quota, _ in _quotas(root)), default=None)


def container_cpu_s(root: Path = Path("/")) -> float | None:
    """Return the CPU seconds used so far by the cgroup whose quota cpu_quota returns; None without a quota, or if the
    system does not say."""
    _, folder = min(_quotas(root), default=(0.0, None))
    if folder is None:
        return None
    with suppress(OSError, ValueError, IndexError):
        return int((folder / "cpuacct.usage").read_text()) / 1e9  # version 1, nanoseconds
    with suppress(OSError, ValueError, IndexError):
        words = (folder / "cpu.stat").read_text().split()
        return int(words[words.index("usage_usec") + 1]) / 1e6
    return None


def _quotas(root: Path) -> list[tuple[float, Path]]:
    """Return each quota that limits this process, in cores, with the folder of its cgroup."""
    found: list[tuple[float, Path]] = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = ["0::/", "1:cpu:/"]
    for controllers, path in (line.split(":", 2)[1:] for line in lines if line.count(":") >= 2):
        if controllers and "cpu" not in controllers.split(","):
            continue
        own = PurePosixPath("/", path).relative_to("/")
        for base in V1_FOLDERS if controllers else ("", "unified"):
            folder = root / "sys/fs/cgroup" / base
            groups = [folder / group for group in (own, *own.parents)]
            found += [(quota, group) for group in groups if (quota := _quota_of(group, bool(controllers))) is not None]
    return found


def _quota_of(folder: Path, is_v1: bool) -> float | None:
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_v1 else ("cpu.max",)
    try:
        quota, period = map(int, " ".join((folder / name).read_text() for name in names).split())
    except (OSError, ValueError):  # no such file, or "max"
        return None
    return quota / period if quota > 0 and period > 0 else None  # version 1 writes -1 for no limit


def cores_per_process(local_world_size: int, environ: Mapping[str, str] = os.environ) -> int:
    """Return this process's share of the machine's cores, at least 1.

    The processes of one machine share its cores evenly. A SLURM task, however, has its own cores (srun
    --cpus-per-task), and num_cores() already counts only those.
    """
    cores = num_cores()
    tasks = re.match(r"\d+", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if local_world_size > 1 and tasks and int(tasks[0]) == local_world_size:
        per_task = environ.get("SLURM_CPUS_PER_TASK", "")
        if per_task.isdecimal():
            return max(1, min(cores, int(per_task)))
        on_node = environ.get("SLURM_CPUS_ON_NODE", "")
        if on_node.isdecimal() and cores < int(on_node):
            return cores
    return max(1, cores // local_world_size)


def num_sharing(local_world_size: int) -> int:
    """Return how many of the job's processes on this machine share this process's cores."""
    return max(1, num_cores() // cores_per_process(local_world_size))


def cpu_model() -> str:
    """Return the processor's name as reported by Linux; on other systems, or if there is none, the architecture."""
    return " ".join(cpuinfo("model name")) or platform.processor() or platform.machine()


def cpuinfo(field: str) -> list[str]:
    """Return the words of a field of the first processor in /proc/cpuinfo; [] without that field or file."""
    lines = CPUINFO.read_text(encoding="utf-8").splitlines() if CPUINFO.is_file() else list[str]()
    return next((line.partition(":")[2].split() for line in lines if line.startswith(field)), list[str]())


def bf16_units() -> str:
    """Return the CPU's bf16 units: AMX, AVX512-BF16, or "" if it has none; bf16 is then emulated, slower than fp32."""
    flags = set(cpuinfo("flags"))  # only x86 has the field and these flags
    return "AMX" if "amx_bf16" in flags else "AVX512-BF16" if "avx512_bf16" in flags else ""
