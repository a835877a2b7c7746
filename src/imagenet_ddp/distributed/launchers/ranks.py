"""Read the rank of this process from options (cluster.rank, ...), from variables (RANK, ...) that torchrun, a platform
or a person has set, or from those of a launcher such as mpirun. This module does not import torch."""

from collections.abc import Mapping
from dataclasses import replace

from imagenet_ddp.distributed.launchers import known_launchers, slurm_env
from imagenet_ddp.distributed.launchers.request import LaunchRequest, requested_address
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, WorldInfo
from imagenet_ddp.errors import ConfigError

OPTIONS = {"RANK": "cluster.rank", "WORLD_SIZE": "cluster.world_size", "LOCAL_RANK": "cluster.local_rank"}
NUMBERS = (*OPTIONS, "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "TORCHELASTIC_RESTART_COUNT")
# which Lightning reads when it is imported, whatever the launcher: lightning/fabric/utilities/rank_zero.py
OF_LIGHTNING = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")


def launcher_name(environ: Mapping[str, str], *, by_tasks: bool) -> str | None:
    """Return the name of the launcher that assigns the ranks; None if a person or a platform has set the variables.

    by_tasks: also detect SLURM steps and the launchers of known_launchers.py.
    """
    if "TORCHELASTIC_RUN_ID" in environ:
        return "torchrun"
    return _task_name(environ) if by_tasks and "RANK" not in environ else None


def _task_name(environ: Mapping[str, str]) -> str | None:
    """Return the name of the launcher or SLURM step; None if this process is not one of several tasks."""
    launcher = known_launchers.process_launcher(environ) or slurm_env.read_step(environ)
    return launcher.name if launcher else None


def from_options(request: LaunchRequest, environ: Mapping[str, str]) -> LaunchInfo | None:
    """Read cluster.rank, cluster.local_rank and cluster.world_size. Return None if none of them is set.

    An option that is not set defaults to RANK, LOCAL_RANK or WORLD_SIZE. The options correspond to --rank and
    --world-size in older tutorials.
    """
    values = {name: request.cluster[option.partition(".")[2]] for name, option in OPTIONS.items()}
    typed = {name: str(value) for name, value in values.items() if value is not None}
    if not typed:
        return None
    names = {name: option for name, option in OPTIONS.items() if name in typed or name not in environ}
    return _read(request, {**environ, **typed}, "cluster.rank", {**names, "NODE_RANK": "cluster.node_rank"})


def from_env_vars(request: LaunchRequest, environ: Mapping[str, str]) -> LaunchInfo | None:
    """Return the launch info of the rank in RANK, WORLD_SIZE, ...; None unless there is one command per process."""
    by_variables = request.cluster["name"] == "env"
    if not {"RANK", "WORLD_SIZE"} & environ.keys():
        by_node = "NODE_RANK" in environ or request.cluster["node_rank"] is not None
        if not by_variables or by_node or ((request.num_nodes or 1) > 1 and environ.get("MASTER_ADDR")):
            return None
    if "RANK" not in environ and not by_variables and _task_name(environ):
        return None  # WORLD_SIZE is exported in a batch script; slurm.py compares it with the step
    if _is_per_machine(request, environ):
        return None
    if "TORCHELASTIC_RUN_ID" not in environ:
        return _read(request, environ, "environment variables")
    found, master = _read(request, environ, "torchrun"), (environ.get("MASTER_ADDR"), environ.get("MASTER_PORT"))
    if found.address and request.cluster["address"] and (found.address.host, str(found.address.port)) != master:
        raise ConfigError(
            f"torchrun determines the rendezvous address, {master[0]}:{master[1]}, but cluster.address is "
            f"{request.cluster['address']}. Hint: leave cluster.address out."
        )
    return found


def from_process_launcher(request: LaunchRequest, environ: Mapping[str, str]) -> LaunchInfo | None:
    """Read the variables of the launcher of known_launchers.py that started this process. Return None if there is none.

    With one process per node and several devices, each command starts the workers of its node.
    """
    row = known_launchers.process_launcher(environ)
    if row is None:
        return None
    number = known_launchers.process_numbers(row, environ)
    local_size = number.get("LOCAL_WORLD_SIZE")
    here = {"MASTER_ADDR": "127.0.0.1"} if local_size == number["WORLD_SIZE"] else {}
    by_node = local_size == "1" and (request.devices or 1) > 1
    try:
        found = _read(replace(request, devices=None) if by_node else request, {**here, **environ, **number}, row.name)
    except ConfigError as error:
        counted = f"{row.name} started {environ[row.size]} processes ({row.size}={environ[row.size]}), but "
        raise ConfigError([counted + mistake for mistake in error.mistakes]) from error
    return replace(found, world_info=None) if by_node else found


def refuse_unknown_size(request: LaunchRequest, environ: Mapping[str, str]) -> LaunchInfo | None:
    """Raise ConfigError if a launcher or platform has numbered this process or machine above 0, but no variable says
    how many there are. Return None otherwise."""
    if slurm_env.in_step(environ):
        return None
    options = dict.fromkeys(known_launchers.RANKS, "trainer.num_nodes=NODES cluster.world_size=N cluster.rank")
    if request.num_nodes != 1:
        options |= dict.fromkeys(known_launchers.NODE_RANKS, "trainer.num_nodes=NODES cluster.node_rank")
    for name, number in options.items():
        if environ.get(name, "").isdecimal() and int(environ[name]) > 0:
            raise ConfigError(
                f"{name}={environ[name]} means that this is one of several commands, but no variable contains their "
                f"number. Hint: start the command with torchrun; or set {number}=${name} "
                f"cluster.address=tcp://HOST:29500; or run `unset {name}` if the variable is left over."
            )
    return None


def _is_per_machine(request: LaunchRequest, environ: Mapping[str, str]) -> bool:
    """Return whether there is one command per machine.

    In that case, either cluster.node_rank=$RANK is typed (Kubeflow), or NODE_RANK is set and RANK is not.
    """
    if {"TORCHELASTIC_RUN_ID", "LOCAL_RANK"} & environ.keys() or request.num_nodes is None:
        return False
    size, by_key = environ.get("WORLD_SIZE"), request.cluster["node_rank"] is not None
    if size == str(request.num_nodes) and by_key:
        return True
    processes = str(request.num_nodes * (request.devices or 0))
    return "RANK" not in environ and (by_key or "NODE_RANK" in environ) and size in (str(request.num_nodes), processes)


def _read(
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
    if missing:
        raise ConfigError(_missing(request, environ, source, missing, size, names))
    assert size is not None
    if wrong := _contradiction(request, size, number.get("LOCAL_WORLD_SIZE"), names.get("WORLD_SIZE", "WORLD_SIZE")):
        raise ConfigError(wrong)
    if address is None:
        return LaunchInfo(world_info=WorldInfo(source=source if names else "a launcher's single process"))
    node_rank = number.get("GROUP_RANK", number.get("NODE_RANK", number["RANK"] // per_node if per_node else 0))
    if request.cluster["node_rank"] is not None and source in ("cluster.rank", "environment variables"):
        node_rank = request.cluster["node_rank"]
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
    manual = source in ("cluster.rank", "environment variables")
    return LaunchInfo(source, address, world_info, world_info.num_nodes, node_rank, manual=manual)


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
    wrong += [
        f"{name} must be 1 or more, got 0 (environment). Hint: set {name} to the number of processes."
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")
        if number.get(name) == 0
    ]
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
    given = {names.get(name, name): environ[name] for name in OPTIONS if name in environ}
    by_variables = request.cluster["name"] == "env"
    address = ("MASTER_ADDR=HOST" if by_variables else "cluster.address=tcp://HOST:29500") * ("MASTER_ADDR" in missing)
    what = f"these values are not set: {', '.join(names.get(name, name) for name in missing)}. Hint: "
    row = next((row for row in known_launchers.PROCESS_LAUNCHERS if row.name == source), None)
    if row and "RANK" in missing:
        return f"{row.rank} is not set. Hint: set {row.rank}, or start the command with torchrun."
    if row:
        if "LOCAL_RANK" not in missing:
            return f"{what}set {address}."
        here = f"trainer.num_nodes=1{' cluster.address=127.0.0.1' * bool(address)}"
        return (
            f"{what}set {here} if all of them run on this machine; or set trainer.num_nodes=NODES {address}".strip()
            + "."
        )
    numbers = [
        f"{names.get(name, name)}={'<number of processes>' if name == 'WORLD_SIZE' else 'N'}"
        for name in missing
        if name in OPTIONS
    ]
    ways = ["start the command with torchrun"]
    if "LOCAL_RANK" not in missing or not request.devices or (size or 0) % request.devices == 0:
        ways.append(f"set {' '.join([*numbers, *([address] if address else [])])} for this process")
    if missing[0] == "LOCAL_RANK" and request.devices is None:
        ways.append(f"set trainer.devices=1 {address} if each machine has one process".replace("  ", " "))
    if "LOCAL_RANK" in missing:
        rank = "$RANK" if not names else environ.get("RANK", "N")
        without = f", without {' and '.join(given)}" if names else ""
        of_machine = f"trainer.num_nodes={size or 2} cluster.node_rank={rank} {address}".strip()
        ways.append(f"if each machine runs one command, set {of_machine}{without}")
    there = ", ".join(f"{name}={value}" for name, value in given.items()) or "cluster=env"
    return f"{there} mean{'s' if len(given) < 2 else ''} one command per process, but {what}{'; or '.join(ways)}."


def _contradiction(request: LaunchRequest, size: int, local: int | None, name: str) -> str | None:
    """Return an error message if devices × nodes is not the launcher's world size, otherwise None."""
    devices = request.devices or local or (size // request.num_nodes if request.num_nodes else None)
    if devices is None:
        return None
    num_nodes = request.num_nodes or max(1, size // (local or devices))
    if devices * num_nodes == size and devices == (local or devices):
        return None
    hint = "leave trainer.devices and trainer.num_nodes out, to use the launcher's numbers"
    if local and size % local:
        hint = "use the same --nproc_per_node on every node"
    elif (local or request.devices) == devices and size % devices == 0:
        hint = f"set trainer.num_nodes={size // devices}"
    of_node = f" (LOCAL_WORLD_SIZE is {local})" if local and (local != devices or size % local) else ""
    return (
        f"trainer.devices × trainer.num_nodes must equal {name} ({size}), got {devices} × {num_nodes} = "
        f"{devices * num_nodes}{of_node}. Hint: {hint}."
    )
