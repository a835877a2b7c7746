"""Read SLURM's variables: the step, its tasks and nodes, job arrays. No torch.

The names are those of SLURM's manual pages of srun and sbatch, "OUTPUT ENVIRONMENT VARIABLES".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Each step has ports of its own, so that two on one machine do not meet: 29500 plus the job's last three digits, plus
# 100 for each step before this one; then others at this distance: rank 0 uses the first that is free. All lie below the
# ephemeral ports of Linux (32768).
FIRST_PORT, NUM_PORTS = 29500, 1000
NUM_TRIES, DISTANCE = 8, 125


@dataclass(frozen=True)
class Step:
    """The step (srun) of which this process is a task."""

    job_id: str
    step_id: str
    num_tasks: int
    num_nodes: int
    task: int  # SLURM_PROCID
    local_task: int  # SLURM_LOCALID
    node: int  # SLURM_NODEID
    tasks_per_node: tuple[int, ...]
    first_host: str | None
    gpus_per_node: int | None

    @property
    def name(self) -> str:
        return f"slurm job {self.job_id}"

    @property
    def ports(self) -> tuple[int, ...]:
        job, step = (int(re.sub(r"\D", "", text) or 0) for text in (self.job_id, self.step_id))
        first = job + 100 * step
        return tuple(FIRST_PORT + (first + DISTANCE * number) % NUM_PORTS for number in range(NUM_TRIES))


def in_step(environ: Mapping[str, str]) -> bool:
    """Return whether srun started this process. SLURM_NTASKS does not show this: it is set in the batch shell too."""
    return "SLURM_STEP_ID" in environ or "SLURM_STEP_NUM_TASKS" in environ


def read_step(environ: Mapping[str, str]) -> Step | None:
    """Return the step; None outside of one, and in a step with a single task."""
    if not in_step(environ):
        return None
    num_tasks = _number(environ, "SLURM_STEP_NUM_TASKS", _number(environ, "SLURM_NTASKS", 1))
    num_nodes = max(1, _number(environ, "SLURM_STEP_NUM_NODES", _number(environ, "SLURM_NNODES", 1)))
    if num_tasks <= 1:
        return None
    per_node = expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", environ.get("SLURM_TASKS_PER_NODE", "")))
    if (sum(per_node), len(per_node)) != (num_tasks, num_nodes):  # the job's, not this step's
        more = num_tasks % num_nodes
        per_node = tuple(num_tasks // num_nodes + (node < more) for node in range(num_nodes))
    node_list = environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_NODELIST", environ.get("SLURM_JOB_NODELIST", "")))
    gpus = environ.get("SLURM_GPUS_ON_NODE", "")
    return Step(
        job_id=environ.get("SLURM_JOB_ID", "0"),
        step_id=environ.get("SLURM_STEP_ID", "0"),
        num_tasks=num_tasks,
        num_nodes=num_nodes,
        task=_number(environ, "SLURM_PROCID", 0),
        local_task=_number(environ, "SLURM_LOCALID", 0),
        node=_number(environ, "SLURM_NODEID", 0),
        tasks_per_node=per_node,
        first_host=first_host(node_list),
        gpus_per_node=int(gpus) if gpus.isdecimal() else None,
    )


def first_task(environ: Mapping[str, str], num_nodes: Any, tasks_per_node: int) -> dict[str, str]:
    """Build the environment of rank 0 in a job that sbatch would start from this one. num_nodes: a value other than an
    int means one node."""
    nodes = num_nodes if isinstance(num_nodes, int) and num_nodes > 0 else 1
    return {name: value for name, value in environ.items() if not name.startswith("SLURM_")} | {
        "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_NODES": str(nodes), "SLURM_STEP_NUM_TASKS": str(nodes * tasks_per_node),
        "SLURM_STEP_NODELIST": f"127.0.0.[1-{nodes}]", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
        "SLURM_CPUS_ON_NODE": str(tasks_per_node),
    }  # fmt: skip


def num_job_nodes(environ: Mapping[str, str]) -> int:
    """Return the number of nodes of this job, 1 outside of SLURM."""
    return _number(environ, "SLURM_JOB_NUM_NODES", _number(environ, "SLURM_NNODES", 1))


def run_key(environ: Mapping[str, str]) -> str | None:
    """Return a name for this job's run, the same after a requeue; None outside of SLURM."""
    job = array_name(environ) or environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    return "slurm_" + "_".join([job, *([environ["SLURM_STEP_ID"]] if "SLURM_STEP_ID" in environ else [])])


def sweep_key(environ: Mapping[str, str]) -> str | None:
    """Return a name for this job's sweep, the same for all tasks of an array and all steps of a job; None outside of
    SLURM."""
    job = environ.get("SLURM_ARRAY_JOB_ID", environ.get("SLURM_JOB_ID"))
    return f"slurm_{job}" if job is not None else None


def array_task(environ: Mapping[str, str]) -> str | None:
    """Return this task's number in its job array; None outside of one."""
    return environ["SLURM_ARRAY_TASK_ID"] if array_name(environ) else None


def array_name(environ: Mapping[str, str]) -> str | None:
    """Return JOB_TASK, as SLURM's commands name a task of a job array; None outside of one."""
    names = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
    return "_".join(environ[name] for name in names) if all(environ.get(name) for name in names) else None


def first_host(text: str) -> str | None:
    """Return node01 of 'node[01-03,7],gpu1'; None for any other text."""
    found = re.match(r"(?:[\w.-]|\[\d[\d,-]*\])+(?=,|$)", text)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", found[0]) if found else None


def expand_counts(text: str) -> tuple[int, ...]:
    """Expand '2(x3),1' to (2, 2, 2, 1)."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return tuple(counts)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name, "")
    return int(value) if value.isdecimal() else default
