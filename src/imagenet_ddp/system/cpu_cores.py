"""CPU cores of this machine, and those of one process among others on it. No torch here."""

import os
import re
from collections.abc import Mapping


def num_cores() -> int:
    """That this process may use: of a machine whose others are another job's, only the own ones."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_per_process(local_world_size: int, environ: Mapping[str, str] = os.environ) -> int:
    """1 or more. Processes of one machine share its cores evenly; but tasks of SLURM each have their own, which the
    others do not see (srun --cpus-per-task), and nothing is left to share."""
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
