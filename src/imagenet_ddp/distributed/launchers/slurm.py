"""Read SLURM's environment: the step and the task of this process, its ranks, and job arrays. Refuse a batch shell that
would use only its own node. Does not import torch.

The variables are documented in the manual pages of srun and sbatch, section "OUTPUT ENVIRONMENT VARIABLES".
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagenet_ddp.distributed.launchers.address import Address, requested_address
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, LaunchRequest, WorldInfo
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import count_noun

# The port is 29500 plus the last three digits of the job ID, plus 100 for each previous step, so that jobs and steps on
# one machine do not share a rendezvous. All ports are below the ephemeral ports of Linux (32768).
FIRST_PORT, NUM_PORTS = 29500, 1000
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
    def port(self) -> int:
        job, step = (int(re.sub(r"\D", "", text) or 0) for text in (self.job_id, self.step_id))
        return FIRST_PORT + (job + 100 * step) % NUM_PORTS


def in_step(environ: Mapping[str, str]) -> bool:
    """Return whether srun started this process.

    SLURM_NTASKS does not show this, because SLURM also sets it in the batch shell.
    """
    return "SLURM_STEP_ID" in environ or "SLURM_STEP_NUM_TASKS" in environ


def read_step(environ: Mapping[str, str]) -> Step | None:
    """Return the step of this process; None outside a step, and in a step with a single task."""
    num_tasks = _number(environ, "SLURM_STEP_NUM_TASKS", 1)
    num_nodes = max(1, _number(environ, "SLURM_STEP_NUM_NODES", 1))
    if num_tasks <= 1:
        return None
    per_node = expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if (sum(per_node), len(per_node)) != (num_tasks, num_nodes):
        more = num_tasks % num_nodes
        per_node = tuple(num_tasks // num_nodes + (node < more) for node in range(num_nodes))
    return Step(
        job_id=environ.get("SLURM_JOB_ID", "0"),
        step_id=environ.get("SLURM_STEP_ID", "0"),
        num_tasks=num_tasks,
        num_nodes=num_nodes,
        local_task=_number(environ, "SLURM_LOCALID", 0),
        node=_number(environ, "SLURM_NODEID", 0),
        tasks_per_node=per_node,
        first_host=first_host(environ.get("SLURM_STEP_NODELIST", "")),
        gpus_per_node=_number(environ, "SLURM_GPUS_ON_NODE", 0) or None,
    )


def from_step(step: Step, request: LaunchRequest, environ: Mapping[str, str]) -> LaunchInfo:
    """Return the launch info of this SLURM task.

    In a step of nodes × devices tasks, each task is a rank. In a step of one task per node, each task starts the
    workers of its node. Raises ConfigError for any other number of tasks.
    """
    if _is_typed_in_shell(environ):
        nodes = f" --nodes={step.num_nodes}" if step.num_nodes > 1 else ""
        raise ConfigError(
            f"{step.name} started {step.num_tasks} tasks (SLURM_STEP_NUM_TASKS), but the shell of srun --pty, in which "
            f"this command was typed, belongs to the first task only. Hint: type `srun --overlap{nodes} "
            f"--ntasks={step.num_tasks} {request.line}`, or leave the shell and start it with --ntasks=1."
        )
    address, per_node = _address(step, request, environ), step.tasks_per_node[0]
    found = []
    if request.num_nodes is not None and request.num_nodes != step.num_nodes:
        found.append(
            f"trainer.num_nodes must equal the number of nodes of {step.name} ({step.num_nodes}), got "
            f"{request.num_nodes}. Hint: use #SBATCH --nodes={request.num_nodes}, or leave trainer.num_nodes out."
        )
    if len(set(step.tasks_per_node)) > 1:
        found.append(
            f"{step.name} started {step.num_tasks} tasks on {step.num_nodes} nodes, with different numbers per node. "
            f"Hint: use #SBATCH --ntasks-per-node={request.devices or -(-step.num_tasks // step.num_nodes)}."
        )
    if found:
        raise ConfigError(found)
    devices = request.devices
    if devices is None and per_node == 1 and not request.cpu:
        devices = step.gpus_per_node
    by_node = per_node == 1 and (devices or 1) > 1
    if request.devices not in (None, per_node) and not by_node:
        where = "one node" if step.num_nodes == 1 else f"each of {step.num_nodes} nodes"
        raise ConfigError(
            f"{step.name} started {step.num_tasks} tasks (SLURM_STEP_NUM_TASKS), {per_node} on {where}, but "
            f"trainer.devices={devices} needs {step.num_nodes * request.devices} tasks "
            f"(one per device) or {step.num_nodes} (one per node). Hint: use #SBATCH --ntasks-per-node={devices}, or "
            f"set trainer.devices={per_node}. In scripts/*.sbatch, use --gpus-per-node={devices}, or "
            f"DEVICES={devices} if the nodes have no GPUs."
        )
    size = step.num_nodes * (devices or 1) if by_node else step.num_tasks
    if environ.get("WORLD_SIZE", str(size)) not in (str(size), str(step.num_tasks)):
        raise ConfigError(
            f"WORLD_SIZE must be {size}, because {step.name} started {step.num_tasks} tasks "
            f"(SLURM_STEP_NUM_TASKS), got {environ['WORLD_SIZE']} (environment). Hint: run `unset WORLD_SIZE`."
        )
    world_info = WorldInfo(
        # numbered node by node, as in Lightning, whatever the value of srun --distribution
        rank=step.node * per_node + step.local_task,
        local_rank=step.local_task,
        node_rank=step.node,
        world_size=step.num_tasks,
        local_world_size=per_node,
        num_nodes=step.num_nodes,
        address=address.host,
        port=address.port,
        store_is_served=False,
        source=step.name,
    )
    # the job ID names the restart, because processes of the previous run may still be at the port
    restart = environ.get("SLURM_RESTART_COUNT", "0")
    job_id = f"{step.name}.{step.step_id}" + (f", restart {restart}" if restart != "0" else "")
    return LaunchInfo(step.name, address, None if by_node else world_info, step.num_nodes, step.node, job_id=job_id)


def _is_typed_in_shell(environ: Mapping[str, str]) -> bool:
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


def _address(step: Step, request: LaunchRequest, environ: Mapping[str, str]) -> Address:
    if address := requested_address(request.cluster, environ):
        return address
    # on a single node, no host name needs to be resolved
    host = "127.0.0.1" if step.num_nodes == 1 else step.first_host
    if host is None:
        raise ConfigError(
            f"{step.name} has {step.num_nodes} nodes, but none of SLURM_STEP_NODELIST, cluster.address and MASTER_ADDR "
            "contains an address. Hint: set cluster.address=tcp://<address of the first node>:29500."
        )
    given = {"MASTER_ADDR": host, "MASTER_PORT": environ.get("MASTER_PORT") or str(step.port)}
    address = requested_address(request.cluster, given)
    assert address is not None
    return address


def refuse_batch_shell(request: LaunchRequest, environ: Mapping[str, str]) -> None:
    """Raise ConfigError for a command for several nodes that srun did not start, because only this node would run it.

    It is accepted if it has trainer.num_nodes and a node rank or an address, because the other nodes are then started
    in another way.
    """
    if "SLURM_JOB_ID" not in environ:
        return
    job_nodes, is_in_step = num_job_nodes(environ), in_step(environ)
    others_come = request.cluster["address"] or request.cluster["node_rank"] is not None or "NODE_RANK" in environ
    if (request.num_nodes or (1 if is_in_step else job_nodes)) <= 1 or (others_come and request.num_nodes is not None):
        return
    per_node = f" --ntasks-per-node={request.devices}" if request.devices else ""
    if request.num_nodes is None:
        here, only = "", ", or set trainer.num_nodes=1 to use only this node"
    else:
        here, only = f" and trainer.num_nodes is {request.num_nodes}", ""
    if request.num_nodes is not None and request.num_nodes > job_nodes:
        hint = f"use `sbatch --nodes={request.num_nodes}`, and in its script `srun{per_node} {request.line}`"
    else:
        nodes = f" --nodes={request.num_nodes}" if is_in_step else ""
        hint = f"type `srun{nodes}{per_node} {request.line}`{only}"
    started = "is the only task of its step" if is_in_step else "was not started by srun"
    raise ConfigError(
        f"SLURM job {environ['SLURM_JOB_ID']} has {count_noun(job_nodes, 'node')}{here}, but this command {started} "
        f"and would run on only one node. Hint: {hint}."
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
    return _number(environ, "SLURM_JOB_NUM_NODES", 1)


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
