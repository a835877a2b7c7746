"""Read the ranks from a SLURM step, and refuse a batch shell that would use only its own node."""

from collections.abc import Mapping
from dataclasses import replace

from imagenet_ddp.distributed.launchers import slurm_env
from imagenet_ddp.distributed.launchers.address import Address
from imagenet_ddp.distributed.launchers.request import LaunchRequest, requested_address
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, WorldInfo
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import count_noun


def from_step(request: LaunchRequest, environ: Mapping[str, str]) -> LaunchInfo | None:
    """Return the launch info of this SLURM task; None outside a step with several tasks.

    In a step of nodes × devices tasks, each task is a rank. In a step of one task per node, each task starts the
    workers of its node. Raises ConfigError for any other number of tasks.
    """
    step = slurm_env.read_step(environ)
    if step is None:
        return None
    if slurm_env.is_typed_in_shell(environ):
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
    return LaunchInfo(
        step.name, address, None if by_node else world_info, step.num_nodes, step.node, job_id=_job_id(step, environ)
    )


def _address(step: slurm_env.Step, request: LaunchRequest, environ: Mapping[str, str]) -> Address:
    if address := requested_address(request.cluster, environ):
        return address
    # on a single node, no host name needs to be resolved
    host = "127.0.0.1" if step.num_nodes == 1 else step.first_host
    if host is None:
        raise ConfigError(
            f"{step.name} has {step.num_nodes} nodes, but none of SLURM_STEP_NODELIST, cluster.address and MASTER_ADDR "
            "contains an address. Hint: set cluster.address=tcp://<address of the first node>:29500."
        )
    port = environ.get("MASTER_PORT") or str(step.ports[0])
    address = requested_address(request.cluster, {"MASTER_ADDR": host, "MASTER_PORT": port})
    assert address is not None
    return address if environ.get("MASTER_PORT") else replace(address, more_ports=step.ports[1:])


def _job_id(step: slurm_env.Step, environ: Mapping[str, str]) -> str:
    """Return a job ID that names the step and its restart, because the previous run may still use its ports."""
    restart = environ.get("SLURM_RESTART_COUNT", "0")
    return f"{step.name}.{step.step_id}" + (f", restart {restart}" if restart != "0" else "")


def refuse_batch_shell(request: LaunchRequest, environ: Mapping[str, str]) -> LaunchInfo | None:
    """Raise ConfigError for a command for several nodes that srun did not start, because only this node would run it.

    Return None for other commands. A command for several nodes is accepted if it has trainer.num_nodes and a node rank
    or an address, because the other nodes are then started in another way.
    """
    if "SLURM_JOB_ID" not in environ:
        return None
    job_nodes, in_step = slurm_env.num_job_nodes(environ), slurm_env.in_step(environ)
    others_come = request.cluster["address"] or request.cluster["node_rank"] is not None or "NODE_RANK" in environ
    if (request.num_nodes or (1 if in_step else job_nodes)) <= 1 or (others_come and request.num_nodes is not None):
        return None
    job = environ["SLURM_JOB_ID"]
    per_node = f" --ntasks-per-node={request.devices}" if request.devices else ""
    if request.num_nodes is None:
        here, only = "", ", or set trainer.num_nodes=1 to use only this node"
    else:
        here, only = f" and trainer.num_nodes is {request.num_nodes}", ""
    if request.num_nodes is not None and request.num_nodes > job_nodes:
        hint = f"use `sbatch --nodes={request.num_nodes}`, and in its script `srun{per_node} {request.line}`"
    else:
        nodes = f" --nodes={request.num_nodes}" if in_step else ""
        hint = f"type `srun{nodes}{per_node} {request.line}`{only}"
    started = "is the only task of its step" if in_step else "was not started by srun"
    raise ConfigError(
        f"SLURM job {job} has {count_noun(job_nodes, 'node')}{here}, but this command {started} and would run on only "
        f"one node. Hint: {hint}."
    )
