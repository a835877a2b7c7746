"""Read the rank of this process from RANK, WORLD_SIZE and LOCAL_RANK, or from the options and the variables of other
launchers that stand for them. Does not import torch."""

from collections.abc import Mapping

from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.launchers.request import LaunchRequest, requested_address
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError

OPTIONS = {"RANK": "cluster.rank", "WORLD_SIZE": "cluster.world_size", "LOCAL_RANK": "cluster.local_rank"}
NUMBERS = (*OPTIONS, "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "TORCHELASTIC_RESTART_COUNT")
BY_HAND = ("cluster.rank", "environment variables")  # sources of ranks that a person has typed


def read_ranks(
    request: LaunchRequest, environ: Mapping[str, str], source: str, names: Mapping[str, str] | None = None
) -> Place:
    """Build the place from RANK, WORLD_SIZE and the other variables in environ.

    names: maps a variable to the option or variable that contains its value. Raises ConfigError if values are missing
    or contradictory.
    """
    names = names or {}
    number = _numbers(environ)
    size = number.get("WORLD_SIZE")
    address = requested_address(request.cluster, environ) if size != 1 else None
    per_node = _processes_per_node(request, number, typed="cluster.world_size" in names.values()) if size else 0
    if per_node and "RANK" in number:
        number.setdefault("LOCAL_RANK", number["RANK"] % per_node)
    missing = [name for name in OPTIONS if name not in number]
    if size != 1 and address is None:
        missing.append("MASTER_ADDR")
    if missing or size is None:
        raise ConfigError(_missing(environ, source, missing, names))
    size_name, rank_name = names.get("WORLD_SIZE", "WORLD_SIZE"), names.get("RANK", "RANK")
    if wrong := _contradiction(request, size, number.get("LOCAL_WORLD_SIZE"), size_name, source):
        raise ConfigError(wrong)
    if number["RANK"] >= size:
        raise ConfigError(
            f"{rank_name} must be below {size_name} ({size}), got {number['RANK']}. Hint: number the ranks from 0."
        )
    if address is None:
        return Place(launcher=source if names else "a launcher's single process")
    node_rank = number.get("GROUP_RANK", number.get("NODE_RANK", number["RANK"] // per_node if per_node else 0))
    if request.cluster.node_rank is not None and source in BY_HAND:
        node_rank = request.cluster.node_rank
    is_served = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    place = Place(
        rank=number["RANK"],
        local_rank=number["LOCAL_RANK"],
        node_rank=node_rank,
        world_size=size,
        local_world_size=per_node,
        num_nodes=size // per_node if per_node else 1,
        address=address,
        store_is_served=is_served,
        launcher=source,
        is_typed=source in BY_HAND,
        # a store served by rank 0 is new in each attempt, and nodes that leave and rejoin count attempts differently
        attempt=number.get("TORCHELASTIC_RESTART_COUNT", 0) if is_served else 0,
    )
    local_rank = number["LOCAL_RANK"]
    if per_node and not (local_rank < per_node and number["RANK"] == node_rank * per_node + local_rank):
        raise ConfigError(
            f"{rank_name} must be node rank × {per_node} (processes per node) + local rank, got {number['RANK']} with "
            f"node rank {node_rank} and local rank {local_rank}. Hint: number the ranks node by node, and the local "
            "ranks from 0 on each node."
        )
    return place


def _numbers(environ: Mapping[str, str]) -> dict[str, int]:
    given = {name: environ[name] for name in NUMBERS if name in environ}
    wrong = [
        f"{name} must be an integer, got {value or 'an empty value'} (environment). Hint: run `unset {name}`, or start "
        "the command with torchrun."
        for name, value in given.items()
        if not value.isdecimal()
    ]
    if wrong:
        raise ConfigError(wrong)
    return {name: int(value) for name, value in given.items()}


def _processes_per_node(request: LaunchRequest, number: Mapping[str, int], *, typed: bool) -> int:
    """Return the number of processes per node; 0 if it cannot be derived.

    typed: whether cluster.world_size is set, which counts processes. WORLD_SIZE without LOCAL_RANK, as on Kubeflow, may
    count machines instead.
    """
    size, devices, num_nodes = number["WORLD_SIZE"], request.devices, request.num_nodes
    if "LOCAL_WORLD_SIZE" in number:
        return number["LOCAL_WORLD_SIZE"]
    if num_nodes and size % num_nodes == 0 and ("LOCAL_RANK" in number or size > num_nodes):
        return size // num_nodes
    if devices is None:
        return int(typed and size == 1)
    counts_processes = "LOCAL_RANK" in number or (typed and size % devices == 0 and size != num_nodes)
    return devices if devices == 1 or counts_processes else 0


def _missing(environ: Mapping[str, str], source: str, missing: list[str], names: Mapping[str, str]) -> str:
    """Return an error message that lists the missing values, and hints how to set them per process or per machine."""
    given = [f"{names.get(name, name)}={environ[name]}" for name in OPTIONS if name in environ]
    listed = [
        "MASTER_ADDR (or cluster.address)" if name == "MASTER_ADDR" else names.get(name, name) for name in missing
    ]
    each = "set trainer.num_nodes=NODES cluster.address=tcp://HOST:29500"
    if source in BY_HAND:
        each = (
            "set these values for each process; or if each machine runs one command, set only "
            f"trainer.num_nodes={environ.get('WORLD_SIZE', 'NODES')} "
            f"cluster.node_rank={environ.get('RANK', 'N') if names else '$RANK'}"
        )
    hint = f"start the command with torchrun; or {each}"
    if missing == ["MASTER_ADDR"]:  # all else is known
        hint = (
            "add cluster.address=tcp://HOST:29500 with the host of rank 0, or set MASTER_ADDR for each process, with "
            "Open MPI by mpirun -x MASTER_ADDR=HOST"
        )
    return (
        f"{', '.join(given) or 'cluster=env'} mean one command per process, but these values are not set: "
        f"{', '.join(listed)}. Hint: {hint}."
    )


def _contradiction(request: LaunchRequest, size: int, local: int | None, name: str, source: str) -> str | None:
    """Return an error message if devices × nodes is not the launcher's world size, otherwise None."""
    devices = request.devices or local or (size // request.num_nodes if request.num_nodes else None)
    if devices is None:
        return None
    num_nodes = request.num_nodes or max(1, size // (local or devices))
    if devices * num_nodes == size and devices == (local or devices):
        return None
    of_node = f" (LOCAL_WORLD_SIZE is {local})" if local else ""
    hint = "leave trainer.devices and trainer.num_nodes out, to use the launcher's numbers"
    if source.startswith(slurm.SOURCE):
        hint = f"use #SBATCH --nodes={num_nodes} --ntasks-per-node={devices}, or {hint}"
    return (
        f"trainer.devices × trainer.num_nodes must equal {name} ({size}), got {devices} × {num_nodes} = "
        f"{devices * num_nodes}{of_node}. Hint: {hint}."
    )
