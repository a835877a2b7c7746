"""A SLURM step, or OpenMPI: each task is a rank, or each starts the workers of its node. No torch here."""

from collections.abc import Mapping
from dataclasses import dataclass

from imagenet_ddp.distributed import slurm
from imagenet_ddp.distributed.address import DEFAULT_PORT, Address, port_of
from imagenet_ddp.distributed.asked import Asked
from imagenet_ddp.distributed.place import Place, Rendezvous
from imagenet_ddp.schema import ConfigError
from imagenet_ddp.words import counted

HERE = "127.0.0.1"
OWN_SCRIPTS = " In scripts/*.sbatch: --gpus-per-node={0}, or DEVICES={0} without GPUs."


@dataclass(frozen=True)
class _Tasks:
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


def name(environ: Mapping[str, str]) -> str | None:
    """Of the step, or of OpenMPI; None where this process is no task of several."""
    step = slurm.read_step(environ)
    return step.name if step else "OpenMPI" if _openmpi_numbers(environ) else None


def slurm_step(asked: Asked, environ: Mapping[str, str]) -> Rendezvous | None:
    step = slurm.read_step(environ)
    if step is None:
        return None
    address = asked.address(environ)
    if address is None and (step.num_nodes == 1 or step.hosts):
        # on one node no name needs to resolve
        host = HERE if step.num_nodes == 1 else step.hosts[0]
        more = () if environ.get("MASTER_PORT") else step.ports[1:]
        address = Address(host, _port(environ, step.ports[0]), more_ports=more)
    if address is None:
        raise ConfigError(
            f"{step.name} has {step.num_nodes} nodes, but neither SLURM_STEP_NODELIST, cluster.address nor MASTER_ADDR "
            "says where they meet. HINT: cluster.address=tcp://<address of the first node>:29500."
        )
    per_node = step.tasks_per_node[0] if len(set(step.tasks_per_node)) == 1 else None
    return _place(
        asked,
        environ,
        _Tasks(
            step.name, step.num_tasks, step.num_nodes, step.local_task, step.node, per_node, step.gpus_per_node,
            "SLURM_STEP_NUM_TASKS", "#SBATCH --ntasks-per-node", "#SBATCH --nodes={}", OWN_SCRIPTS,
            address, _job_id(step, environ),
        ),
    )  # fmt: skip


def _job_id(step: slurm.Step, environ: Mapping[str, str]) -> str:
    """Another one when SLURM has started the job again: its ports may still be somebody's."""
    restart = environ.get("SLURM_RESTART_COUNT", "0")
    return f"{step.name}.{step.step_id}" + (f", restart {restart}" if restart != "0" else "")


def openmpi(asked: Asked, environ: Mapping[str, str]) -> Rendezvous | None:
    numbers = _openmpi_numbers(environ)
    if numbers is None:
        return None
    size, rank, local_size, local_rank = numbers
    num_nodes = -(-size // local_size)
    address = asked.address(environ)
    if address is None:
        if num_nodes > 1:
            raise ConfigError(
                f"mpirun started {size} processes on {num_nodes} machines, but where do they meet? There is no "
                "cluster.address and no MASTER_ADDR. "
                "HINT: `mpirun -x MASTER_ADDR=<address of the first machine> ...`."
            )
        address = Address(HERE, _port(environ, DEFAULT_PORT))
    even = size % local_size == 0
    if even and rank % local_size != local_rank:
        raise ConfigError(
            f"OpenMPI is expected to count its ranks node by node, but rank {rank} has local rank {local_rank} of "
            f"{local_size}. HINT: `mpirun --map-by slot ...`, or `--map-by ppr:{local_size}:node`."
        )
    return _place(
        asked,
        environ,
        _Tasks(
            "OpenMPI", size, num_nodes, local_rank, rank // local_size, local_size if even else None, None,
            "OMPI_COMM_WORLD_SIZE", "--npernode", "hosts for {}", "", address,
        ),
    )  # fmt: skip


def _openmpi_numbers(environ: Mapping[str, str]) -> tuple[int, int, int, int] | None:
    """(size, rank, local size, local rank); None outside, and for one process."""
    names = ("SIZE", "RANK", "LOCAL_SIZE", "LOCAL_RANK")
    values = [environ.get(f"OMPI_COMM_WORLD_{name}", "") for name in names]
    if not all(value.isdecimal() for value in values) or int(values[0]) <= 1 or int(values[2]) < 1:
        return None
    size, rank, local_size, local_rank = map(int, values)
    return size, rank, local_size, local_rank


def _port(environ: Mapping[str, str], default: int) -> int:
    try:
        return port_of(environ) if environ.get("MASTER_PORT") else default
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _place(asked: Asked, environ: Mapping[str, str], tasks: _Tasks) -> Rendezvous:
    """nodes × devices tasks: each is a rank. One per node and several devices: each starts its local workers."""
    found = []
    if asked.num_nodes is not None and asked.num_nodes != tasks.num_nodes:
        found.append(
            f"trainer.num_nodes is expected to equal the nodes of {tasks.source} ({tasks.num_nodes}), but is "
            f"{asked.num_nodes}. HINT: {tasks.nodes_hint.format(asked.num_nodes)}, or leave trainer.num_nodes out."
        )
    if tasks.per_node is None:
        found.append(
            f"{tasks.source} started {tasks.num_tasks} tasks on {tasks.num_nodes} nodes, not the same number on "
            f"each. HINT: {tasks.per_node_option}={asked.devices or -(-tasks.num_tasks // tasks.num_nodes)}."
        )
    if found:
        raise ConfigError(found)
    assert tasks.address is not None and tasks.per_node is not None
    devices = asked.devices
    if devices is None and tasks.per_node == 1 and not asked.cpu and (tasks.gpus_per_node or 1) > 1:
        devices = tasks.gpus_per_node
    by_node = tasks.per_node == 1 and (devices or 1) > 1
    if devices is not None and devices != tasks.per_node and not by_node:
        where = "one node" if tasks.num_nodes == 1 else f"each of {tasks.num_nodes} nodes"
        raise ConfigError(
            f"{tasks.source} started {tasks.num_tasks} tasks ({tasks.variable}), {tasks.per_node} on {where}, but "
            f"trainer.devices is {devices}: expected are {tasks.num_nodes * devices} "
            f"(one per device) or {tasks.num_nodes} (one per node). HINT: {tasks.per_node_option}={devices}, or "
            f"trainer.devices={tasks.per_node}.{tasks.more_hint.format(devices)}"
        )
    if wrong := _too_few_gpus(asked, environ, tasks, devices or 1 if by_node else tasks.per_node):
        raise ConfigError(wrong)
    size = tasks.num_nodes * (devices or 1) if by_node else tasks.num_tasks
    if environ.get("WORLD_SIZE", str(size)) not in (str(size), str(tasks.num_tasks)):
        raise ConfigError(
            f"WORLD_SIZE is expected to be {size}, as {tasks.source} started {tasks.num_tasks} tasks "
            f"({tasks.variable}), but is {environ['WORLD_SIZE']} (environment). HINT: leave it out."
        )
    if by_node:
        return Rendezvous(tasks.source, tasks.address, None, tasks.num_nodes, tasks.node, job_id=tasks.job_id)
    place = Place(
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
    return Rendezvous(tasks.source, tasks.address, place, tasks.num_nodes, tasks.node, job_id=tasks.job_id)


def _too_few_gpus(asked: Asked, environ: Mapping[str, str], tasks: _Tasks, needed: int) -> str | None:
    """Each process takes the GPU of its local rank, so it must see those of the whole node."""
    shown = environ.get("CUDA_VISIBLE_DEVICES", environ.get("ROCR_VISIBLE_DEVICES", ""))
    num_seen = len([name for name in shown.split(",") if name])
    if asked.cpu or not num_seen or num_seen >= needed:
        return None
    return (
        f"each task of {tasks.source} is expected to see the {needed} GPUs of its node, but sees {num_seen} "
        f"(CUDA_VISIBLE_DEVICES={shown}). HINT: #SBATCH --gpus-per-node={needed}, without --gpus-per-task and with "
        "`srun --gpu-bind=none`."
    )


def batch_shell(asked: Asked, environ: Mapping[str, str]) -> Rendezvous | None:
    """Inside of a SLURM job, but no task of several: only this node would work. Who names this node's number, or an
    address in an option, starts the other nodes in another way."""
    if "SLURM_JOB_ID" not in environ:
        return None
    job_nodes, in_step = slurm.num_job_nodes(environ), slurm.in_step(environ)
    others_come = asked.cluster["address"] or asked.cluster["node_rank"] is not None or "NODE_RANK" in environ
    if (asked.num_nodes or (1 if in_step else job_nodes)) <= 1 or (others_come and asked.num_nodes is not None):
        return None
    job = environ["SLURM_JOB_ID"]
    per_node = f" --ntasks-per-node={asked.devices}" if asked.devices else ""
    if asked.num_nodes is None:
        here, only = "", ", or trainer.num_nodes=1 for this node alone"
    else:
        here, only = f" and trainer.num_nodes is {asked.num_nodes}", ""
    if asked.num_nodes is not None and asked.num_nodes > job_nodes:
        hint = f"`sbatch --nodes={asked.num_nodes}`, and in its script `srun{per_node} {asked.line}`"
    else:
        nodes = f" --nodes={asked.num_nodes}" if in_step else ""
        hint = f"`srun{nodes}{per_node} {asked.line}`{only}"
    started = "is the only task of its step" if in_step else "was not started by srun"
    raise ConfigError(
        f"SLURM job {job} has {counted(job_nodes, 'node')}{here}, but this command {started}, so it "
        f"runs on one. HINT: {hint}."
    )
