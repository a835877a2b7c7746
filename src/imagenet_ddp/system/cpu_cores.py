"""Count the CPU cores available to a process, and name the processor. Does not import torch."""

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def num_cores() -> int:
    """Return the number of CPU cores available to this process (its affinity mask)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


def cpu_model() -> str:
    """Return the processor's name as reported by Linux; on other systems, or if there is none, the architecture."""
    return " ".join(cpuinfo("model name")) or platform.processor() or platform.machine()


def cpuinfo(field: str) -> list[str]:
    """Return the words of a field of the first processor in /proc/cpuinfo; [] without that field or file."""
    lines = CPUINFO.read_text(encoding="utf-8").splitlines() if CPUINFO.is_file() else []
    return next((line.partition(":")[2].split() for line in lines if line.startswith(field)), [])
