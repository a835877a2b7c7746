"""Read SLURM's environment variables for steps, tasks, nodes and job arrays. Does not import torch.

The variables are documented in the manual pages of srun and sbatch, section "OUTPUT ENVIRONMENT VARIABLES".
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Each step has its own ports, so two steps on one machine do not share a rendezvous. The first port is 29500 plus the
# last three digits of the job ID, plus 100 for each previous step. More ports follow at intervals of DISTANCE, and rank
# 0 uses the first one that is free. All of them are below the ephemeral ports of Linux (32768).
FIRST_PORT, NUM_PORTS = 29500, 1000
NUM_TRIES, DISTANCE = 8, 125

SOURCE = "SLURM job"  # first words of the source of a launcher that is SLURM


@dataclass(frozen=True)
class Step:
    """SLURM step (srun) that started this process as one of its tasks."""

    job_id: str
    step_id: str
    num_tasks: int
    num_nodes: int
    local_task: int  # SLURM_LOCALID
    node: int  # SLURM_NODEID
    tasks_per_node: tuple[int, ...]
    first_host: str | None
    gpus_per_node: int | None

    @property
    def name(self) -> str:
        return f"{SOURCE} {self.job_id}"

    @property
    def ports(self) -> tuple[int, ...]:
        job, step = (int(re.sub(r"\D", "", text) or 0) for text in (self.job_id, self.step_id))
        first = job + 100 * step
        return tuple(FIRST_PORT + (first + DISTANCE * number) % NUM_PORTS for number in range(NUM_TRIES))


def in_step(environ: Mapping[str, str]) -> bool:
    """Return whether srun started this process.

    SLURM_NTASKS does not show this, because SLURM also sets it in the batch shell.
    """
    return "SLURM_STEP_ID" in environ or "SLURM_STEP_NUM_TASKS" in environ


def is_typed_in_shell(environ: Mapping[str, str]) -> bool:
    """Return whether a person typed this command in the shell of `srun --pty bash`, so that no other task runs it.

    An interactive shell gives each command a process group of its own. A command that srun started has its task's.
    """
    task = environ.get("SLURM_TASK_PID", "")
    if "SLURM_PTY_PORT" not in environ or not task.isdecimal():
        return False
    try:
        return os.getpgid(int(task)) != os.getpgrp()
    except OSError:  # the task has ended
        return False


def read_step(environ: Mapping[str, str]) -> Step | None:
    """Return the step of this process; None outside a step, and in a step with a single task."""
    if not in_step(environ):
        return None
    num_tasks = _number(environ, "SLURM_STEP_NUM_TASKS", _number(environ, "SLURM_NTASKS", 1))
    num_nodes = max(1, _number(environ, "SLURM_STEP_NUM_NODES", _number(environ, "SLURM_NNODES", 1)))
    if num_tasks <= 1:
        return None
    per_node = expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", environ.get("SLURM_TASKS_PER_NODE", "")))
    if (sum(per_node), len(per_node)) != (num_tasks, num_nodes):  # the counts are those of the job, not of this step
        more = num_tasks % num_nodes
        per_node = tuple(num_tasks // num_nodes + (node < more) for node in range(num_nodes))
    node_list = environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_NODELIST", environ.get("SLURM_JOB_NODELIST", "")))
    gpus = environ.get("SLURM_GPUS_ON_NODE", "")
    return Step(
        job_id=environ.get("SLURM_JOB_ID", "0"),
        step_id=environ.get("SLURM_STEP_ID", "0"),
        num_tasks=num_tasks,
        num_nodes=num_nodes,
        local_task=_number(environ, "SLURM_LOCALID", 0),
        node=_number(environ, "SLURM_NODEID", 0),
        tasks_per_node=per_node,
        first_host=first_host(node_list),
        gpus_per_node=int(gpus) if gpus.isdecimal() else None,
    )


def first_task(environ: Mapping[str, str], num_nodes: Any, tasks_per_node: int) -> dict[str, str]:
    """Build the environment that rank 0 would have in a job submitted with sbatch from this environment.

    num_nodes: any value except a positive integer means one node.
    """
    nodes = num_nodes if isinstance(num_nodes, int) and num_nodes > 0 else 1
    return {name: value for name, value in environ.items() if not name.startswith("SLURM_")} | {
        "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_NODES": str(nodes), "SLURM_STEP_NUM_TASKS": str(nodes * tasks_per_node),
        "SLURM_STEP_NODELIST": f"127.0.0.[1-{nodes}]", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
        "SLURM_CPUS_ON_NODE": str(tasks_per_node),
    }  # fmt: skip


def num_job_nodes(environ: Mapping[str, str]) -> int:
    """Return the number of nodes of this job; 1 outside SLURM."""
    return _number(environ, "SLURM_JOB_NUM_NODES", _number(environ, "SLURM_NNODES", 1))


def run_key(environ: Mapping[str, str]) -> str | None:
    """Return a name for this job's run that stays the same after a requeue; None outside SLURM."""
    job = array_name(environ) or environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    return "slurm_" + "_".join([job, *([environ["SLURM_STEP_ID"]] if "SLURM_STEP_ID" in environ else [])])


def sweep_key(environ: Mapping[str, str]) -> str | None:
    """Return a name for this job's sweep; None outside SLURM.

    The name is the same for all tasks of a job array and all steps of a job.
    """
    job = environ.get("SLURM_ARRAY_JOB_ID", environ.get("SLURM_JOB_ID"))
    return f"slurm_{job}" if job is not None else None


def array_task(environ: Mapping[str, str]) -> str | None:
    """Return this task's number in its job array; None outside a job array."""
    return environ["SLURM_ARRAY_TASK_ID"] if array_name(environ) else None


def array_name(environ: Mapping[str, str]) -> str | None:
    """Return JOB_TASK, the name of a job array's task in SLURM's commands; None outside a job array."""
    names = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
    return "_".join(environ[name] for name in names) if all(environ.get(name) for name in names) else None


def first_host(text: str) -> str | None:
    """Return the first host of a SLURM node list, such as node01 for 'node[01-03,7],gpu1'; None for other text."""
    found = re.match(r"(?:[\w.-]|\[\d[\d,-]*\])+(?=,|$)", text)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", found[0]) if found else None


def expand_counts(text: str) -> tuple[int, ...]:
    """Expand SLURM's list of task counts into one count per node: '2(x3),1' becomes (2, 2, 2, 1)."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return tuple(counts)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name, "")
    return int(value) if value.isdecimal() else default
