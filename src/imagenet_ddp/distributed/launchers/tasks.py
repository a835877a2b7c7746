"""Assign ranks to the tasks that srun or mpirun started: one per device, or one per node."""

from collections.abc import Mapping
from dataclasses import dataclass

from imagenet_ddp.distributed.launchers.address import Address, port_of
from imagenet_ddp.distributed.launchers.request import LaunchRequest
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, WorldInfo
from imagenet_ddp.errors import ConfigError

HERE = "127.0.0.1"
OWN_SCRIPTS = " In scripts/*.sbatch: --gpus-per-node={0}, or DEVICES={0} without GPUs."


@dataclass(frozen=True)
class Tasks:
    """What SLURM's step and OpenMPI's world have in common."""

    source: str
    num_tasks: int
    num_nodes: int
    local_task: int
    node: int
    per_node: int | None  # None: not the same on each node
    gpus_per_node: int | None
    variable: str  # that says num_tasks
    per_node_option: str  # of the command that started the tasks
    nodes_hint: str  # with {} for their number
    more_hint: str  # with {} for the tasks of a node
    address: Address | None
    job_id: str | None = None


def port_or_default(environ: Mapping[str, str], default: int) -> int:
    try:
        return port_of(environ) if environ.get("MASTER_PORT") else default
    except ValueError as error:
        raise ConfigError(str(error)) from error


def assign_ranks(request: LaunchRequest, environ: Mapping[str, str], tasks: Tasks) -> LaunchInfo:
    """nodes × devices tasks: each is a rank. One per node and several devices: each starts its local workers."""
    found = []
    if request.num_nodes is not None and request.num_nodes != tasks.num_nodes:
        found.append(
            f"trainer.num_nodes must equal the nodes of {tasks.source} ({tasks.num_nodes}), got "
            f"{request.num_nodes}. Hint: {tasks.nodes_hint.format(request.num_nodes)}, or leave trainer.num_nodes out."
        )
    if tasks.per_node is None:
        found.append(
            f"{tasks.source} started {tasks.num_tasks} tasks on {tasks.num_nodes} nodes, not the same number on "
            f"each. Hint: {tasks.per_node_option}={request.devices or -(-tasks.num_tasks // tasks.num_nodes)}."
        )
    if found:
        raise ConfigError(found)
    assert tasks.address is not None and tasks.per_node is not None
    devices = request.devices
    if devices is None and tasks.per_node == 1 and not request.cpu and (tasks.gpus_per_node or 1) > 1:
        devices = tasks.gpus_per_node
    by_node = tasks.per_node == 1 and (devices or 1) > 1
    if devices is not None and devices != tasks.per_node and not by_node:
        where = "one node" if tasks.num_nodes == 1 else f"each of {tasks.num_nodes} nodes"
        raise ConfigError(
            f"{tasks.source} started {tasks.num_tasks} tasks ({tasks.variable}), {tasks.per_node} on {where}, but "
            f"trainer.devices is {devices}: expected are {tasks.num_nodes * devices} "
            f"(one per device) or {tasks.num_nodes} (one per node). Hint: {tasks.per_node_option}={devices}, or "
            f"trainer.devices={tasks.per_node}.{tasks.more_hint.format(devices)}"
        )
    if wrong := _too_few_gpus(request, environ, tasks, devices or 1 if by_node else tasks.per_node):
        raise ConfigError(wrong)
    size = tasks.num_nodes * (devices or 1) if by_node else tasks.num_tasks
    if environ.get("WORLD_SIZE", str(size)) not in (str(size), str(tasks.num_tasks)):
        raise ConfigError(
            f"WORLD_SIZE must be {size}, as {tasks.source} started {tasks.num_tasks} tasks "
            f"({tasks.variable}), got {environ['WORLD_SIZE']} (environment). Hint: leave it out."
        )
    if by_node:
        return LaunchInfo(tasks.source, tasks.address, None, tasks.num_nodes, tasks.node, job_id=tasks.job_id)
    world_info = WorldInfo(
        # node by node, whatever srun --distribution says: so does Lightning
        rank=tasks.node * tasks.per_node + tasks.local_task,
        local_rank=tasks.local_task,
        node_rank=tasks.node,
        world_size=tasks.num_tasks,
        local_world_size=tasks.per_node,
        num_nodes=tasks.num_nodes,
        address=tasks.address.host,
        port=tasks.address.port,
        store_is_served=False,
        source=tasks.source,
    )
    return LaunchInfo(tasks.source, tasks.address, world_info, tasks.num_nodes, tasks.node, job_id=tasks.job_id)


def _too_few_gpus(request: LaunchRequest, environ: Mapping[str, str], tasks: Tasks, needed: int) -> str | None:
    """Each process takes the GPU of its local rank, so it must see those of the whole node."""
    shown = environ.get("CUDA_VISIBLE_DEVICES", environ.get("ROCR_VISIBLE_DEVICES", ""))
    num_seen = len([name for name in shown.split(",") if name])
    if request.cpu or not num_seen or num_seen >= needed:
        return None
    return (
        f"each task of {tasks.source} must see the {needed} GPUs of its node, got {num_seen} "
        f"(CUDA_VISIBLE_DEVICES={shown}). Hint: #SBATCH --gpus-per-node={needed}, without --gpus-per-task and with "
        "`srun --gpu-bind=none`."
    )
