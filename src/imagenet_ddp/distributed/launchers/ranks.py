"""Read the rank of this process from RANK, WORLD_SIZE and LOCAL_RANK, or from the options and the variables of other
launchers that stand for them. Does not import torch."""

from collections.abc import Mapping

from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.launchers.table import PROCESS_LAUNCHERS
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, LaunchRequest, WorldInfo, requested_address
from imagenet_ddp.errors import ConfigError

OPTIONS = {"RANK": "cluster.rank", "WORLD_SIZE": "cluster.world_size", "LOCAL_RANK": "cluster.local_rank"}
NUMBERS = (*OPTIONS, "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "TORCHELASTIC_RESTART_COUNT")
BY_HAND = ("cluster.rank", "environment variables")  # sources of ranks that a person has typed
# which Lightning reads when it is imported, whatever the launcher: lightning/fabric/utilities/rank_zero.py
OF_LIGHTNING = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")


def read_ranks(
    request: LaunchRequest, environ: Mapping[str, str], source: str, names: Mapping[str, str] | None = None
) -> LaunchInfo:
    """Build the launch info from RANK, WORLD_SIZE and the other variables in environ.

    names: maps a variable to the option that set it. Raises ConfigError if values are missing or contradictory.
    """
    names = names or {}
    number = _numbers(environ, names)
    size = number.get("WORLD_SIZE")
    address = requested_address(request.cluster, environ) if size != 1 else None
    per_node = _processes_per_node(request, number, typed="WORLD_SIZE" in names) if size else 0
    if per_node and "RANK" in number:
        number.setdefault("LOCAL_RANK", number["RANK"] % per_node)
    missing = [name for name in OPTIONS if name not in number]
    if size != 1 and address is None:
        missing.append("MASTER_ADDR")
    if missing or size is None:
        raise ConfigError(_missing(request, environ, source, missing, size, names))
    if wrong := _contradiction(
        request, size, number.get("LOCAL_WORLD_SIZE"), names.get("WORLD_SIZE", "WORLD_SIZE"), source
    ):
        raise ConfigError(wrong)
    if address is None:
        return LaunchInfo(world_info=WorldInfo(source=source if names else "a launcher's single process"))
    node_rank = number.get("GROUP_RANK", number.get("NODE_RANK", number["RANK"] // per_node if per_node else 0))
    if request.cluster.node_rank is not None and source in BY_HAND:
        node_rank = request.cluster.node_rank
    is_served = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    world_info = WorldInfo(
        rank=number["RANK"],
        local_rank=number["LOCAL_RANK"],
        node_rank=node_rank,
        world_size=size,
        local_world_size=per_node,
        num_nodes=size // per_node if per_node else 1,
        address=address.host,
        port=address.port,
        store_is_served=is_served,
        source=source,
        # a store served by rank 0 is new in each attempt, and nodes that leave and rejoin count attempts differently
        attempt=number.get("TORCHELASTIC_RESTART_COUNT", 0) if is_served else 0,
    )
    if wrong := world_info.validate([names.get(name, name) for name in ("RANK", "LOCAL_RANK", "NODE_RANK")]):
        raise ConfigError(wrong)
    return LaunchInfo(source, address, world_info, world_info.num_nodes, node_rank, manual=source in BY_HAND)


def refuse_unreadable(environ: Mapping[str, str]) -> None:
    """Raise ConfigError if Lightning could not be imported because of a variable that is not an integer."""
    wrong = [
        f"{_not_integer(environ, name)} Hint: run `unset {name}`."
        for name in OF_LIGHTNING
        if name in environ and not environ[name].removeprefix("-").isdecimal()
    ]
    if wrong:
        raise ConfigError(wrong)


def _not_integer(environ: Mapping[str, str], name: str) -> str:
    return f"{name} must be an integer, got {environ[name] or 'an empty value'} (environment)."


def _numbers(environ: Mapping[str, str], names: Mapping[str, str]) -> dict[str, int]:
    wrong = [
        f"{_not_integer(environ, name)} Hint: start the command with torchrun."
        for name in NUMBERS
        if name in environ and not environ[name].isdecimal()
    ]
    number = {name: int(environ[name]) for name in NUMBERS if environ.get(name, "").isdecimal()}
    rank, size = number.get("RANK"), number.get("WORLD_SIZE")
    if 0 in (size, number.get("LOCAL_WORLD_SIZE")):
        wrong.append("WORLD_SIZE and LOCAL_WORLD_SIZE must be 1 or more, got 0. Hint: start the command with torchrun.")
    if rank is not None and size and rank >= size:
        wrong.append(
            f"{names.get('RANK', 'RANK')} must be below {names.get('WORLD_SIZE', 'WORLD_SIZE')} ({size}), got {rank}. "
            "Hint: number the ranks from 0."
        )
    if wrong:
        raise ConfigError(wrong)
    return number


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


def _missing(
    request: LaunchRequest,
    environ: Mapping[str, str],
    source: str,
    missing: list[str],
    size: int | None,
    names: Mapping[str, str],
) -> str:
    """Return an error message that lists the missing values, and hints how to set them per process or per machine."""
    in_variables = request.cluster.name == "env"
    address = ("MASTER_ADDR=HOST" if in_variables else "cluster.address=tcp://HOST:29500") * ("MASTER_ADDR" in missing)
    what = f"these values are not set: {', '.join(names.get(name, name) for name in missing)}. Hint: "
    row = next((row for row in PROCESS_LAUNCHERS if row.name == source), None)
    if row and "RANK" in missing:
        return f"{row.rank} is not set. Hint: set {row.rank}, or start the command with torchrun."
    if row and "LOCAL_RANK" not in missing:
        return f"{what}set {address}."
    if row:
        here = f"trainer.num_nodes=1{' cluster.address=127.0.0.1' * bool(address)}"
        several = f"trainer.num_nodes=NODES {address}".strip()
        return f"{what}set {here} if all of them run on this machine; or set {several}."
    numbers = {name: "<number of processes>" if name == "WORLD_SIZE" else "N" for name in missing if name in OPTIONS}
    each = " ".join([*(f"{names.get(name, name)}={value}" for name, value in numbers.items()), address]).strip()
    ways = f"start the command with torchrun; or set {each} for this process"
    given = {names.get(name, name): environ[name] for name in OPTIONS if name in environ}
    if "LOCAL_RANK" in missing:
        rank = environ.get("RANK", "N") if names else "$RANK"
        of_machine = f"trainer.num_nodes={size or 2} cluster.node_rank={rank} {address}".strip()
        without = f", without {' and '.join(given)}" if names else ""
        ways += f"; or if each machine runs one command, set {of_machine}{without}"
    there = ", ".join(f"{name}={value}" for name, value in given.items()) or "cluster=env"
    return f"{there} mean one command per process, but {what}{ways}."


def _contradiction(request: LaunchRequest, size: int, local: int | None, name: str, source: str) -> str | None:
    """Return an error message if devices × nodes is not the launcher's world size, otherwise None."""
    devices = request.devices or local or (size // request.num_nodes if request.num_nodes else None)
    if devices is None:
        return None
    num_nodes = request.num_nodes or max(1, size // (local or devices))
    if devices * num_nodes == size and devices == (local or devices):
        return None
    of_node = f" (LOCAL_WORLD_SIZE is {local})" if local and (local != devices or size % local) else ""
    hint = "leave trainer.devices and trainer.num_nodes out, to use the launcher's numbers"
    if source.startswith(slurm.SOURCE):
        hint = (
            f"use #SBATCH --nodes={num_nodes} --ntasks-per-node={devices} (in scripts/*.sbatch "
            f"--gpus-per-node={devices}, or DEVICES={devices} on CPUs), or {hint}"
        )
    return (
        f"trainer.devices × trainer.num_nodes must equal {name} ({size}), got {devices} × {num_nodes} = "
        f"{devices * num_nodes}{of_node}. Hint: {hint}."
    )
