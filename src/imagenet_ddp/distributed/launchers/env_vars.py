"""RANK and WORLD_SIZE in the environment: torchrun, torch.distributed.launch, a platform, or set by hand. No torch."""

from collections.abc import Mapping

from imagenet_ddp.distributed.launchers import openmpi, slurm_env
from imagenet_ddp.distributed.launchers.request import LaunchRequest
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, WorldInfo
from imagenet_ddp.errors import ConfigError

NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK",
           "TORCHELASTIC_RESTART_COUNT")  # fmt: skip


def name(environ: Mapping[str, str], *, by_tasks: bool) -> str | None:
    """Of the launcher whose world this is; None where variables were set by hand, or by a platform. by_tasks: SLURM's
    steps and OpenMPI are looked at."""
    if "TORCHELASTIC_RUN_ID" in environ:
        return "torchrun"
    return task_name(environ) if by_tasks and "RANK" not in environ else None


def launched(request: LaunchRequest, environ: Mapping[str, str]) -> LaunchInfo | None:
    """One command per process."""
    by_variables = request.cluster["name"] == "env"
    if not {"RANK", "WORLD_SIZE"} & environ.keys():
        by_node = "NODE_RANK" in environ or request.cluster["node_rank"] is not None
        by_node = by_node or ((request.num_nodes or 1) > 1 and environ.get("MASTER_ADDR"))
        if by_variables and not by_node:
            needed = [name for name in ("MASTER_ADDR", "WORLD_SIZE", "RANK") if not environ.get(name)]
            raise ConfigError(
                f"cluster=env reads the environment, but not set: {', '.join(needed)}. Hint: in front of the "
                "command MASTER_ADDR=HOST WORLD_SIZE=WORLD_SIZE RANK=RANK LOCAL_RANK=LOCAL_RANK, one command per "
                "process; or MASTER_ADDR=HOST and trainer.num_nodes=2, one command per machine."
            )
        return None
    if "RANK" not in environ and not by_variables and task_name(environ):
        return None  # exported in a batch script; tasks.py holds it against the step
    if _counts_machines(request, environ):
        return None
    number = _numbers(environ)
    missing = _missing(request, environ, number)
    if missing:
        raise ConfigError(_incomplete(environ, missing, number.get("WORLD_SIZE")))
    rank, size, local_rank = number["RANK"], number["WORLD_SIZE"], number["LOCAL_RANK"]
    local = number.get("LOCAL_WORLD_SIZE")
    _must_agree(request, size, local)
    if size == 1:
        return LaunchInfo(world_info=WorldInfo(source="a launcher's single process"))
    address = request.address(environ)
    assert address is not None
    by_torchrun = "TORCHELASTIC_RUN_ID" in environ
    theirs = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if by_torchrun and request.cluster["address"] and (address.host, str(address.port)) != theirs:
        raise ConfigError(
            f"the world is torchrun's, which meets at {theirs[0]}:{theirs[1]}, but cluster.address is "
            f"{request.cluster['address']}. Hint: leave it out."
        )
    local_size = local or request.devices or (size // request.num_nodes if request.num_nodes else 0)
    node_rank = number.get("GROUP_RANK", number.get("NODE_RANK", rank // local_size if local_size else 0))
    if request.cluster["node_rank"] is not None and not by_torchrun:
        node_rank = request.cluster["node_rank"]
    world_info = WorldInfo(
        rank=rank,
        local_rank=local_rank,
        node_rank=node_rank,
        world_size=size,
        local_world_size=local_size,
        num_nodes=size // local_size if local_size else 1,
        address=address.host,
        port=address.port,
        store_is_served=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        source="torchrun" if by_torchrun else "environment variables",
        attempt=number.get("TORCHELASTIC_RESTART_COUNT", 0),
    )
    if wrong := world_info.misnumbered():
        raise ConfigError(wrong)
    return LaunchInfo(world_info.source, address, world_info, world_info.num_nodes, node_rank, manual=not by_torchrun)


def _counts_machines(request: LaunchRequest, environ: Mapping[str, str]) -> bool:
    """Whether each of these commands is a machine's: cluster.node_rank=$RANK (Kubeflow), or NODE_RANK and no RANK."""
    if {"TORCHELASTIC_RUN_ID", "LOCAL_RANK"} & environ.keys() or request.num_nodes is None:
        return False
    size, by_key = environ.get("WORLD_SIZE"), request.cluster["node_rank"] is not None
    if size == str(request.num_nodes) and by_key:
        return True
    processes = str(request.num_nodes * (request.devices or 0))
    return "RANK" not in environ and (by_key or "NODE_RANK" in environ) and size in (str(request.num_nodes), processes)


def _numbers(environ: Mapping[str, str]) -> dict[str, int]:
    wrong = [
        f"{name} must be an integer, got {environ[name] or 'empty'} (environment). Hint: start it with torchrun."
        for name in NUMBERS
        if name in environ and not environ[name].isdecimal()
    ]
    number = {name: int(environ[name]) for name in NUMBERS if environ.get(name, "").isdecimal()}
    rank, size = number.get("RANK"), number.get("WORLD_SIZE")
    if size == 0:
        wrong.append("WORLD_SIZE must be 1 or more, got 0 (environment). Hint: it counts all processes.")
    elif rank is not None and size is not None and rank >= size:
        wrong.append(f"RANK must be below WORLD_SIZE ({size}), got {rank} (environment). Hint: ranks count from 0.")
    if number.get("LOCAL_WORLD_SIZE") == 0:
        wrong.append("LOCAL_WORLD_SIZE must be 1 or more, got 0 (environment). Hint: `unset LOCAL_WORLD_SIZE`.")
    if wrong:
        raise ConfigError(wrong)
    return number


def _missing(request: LaunchRequest, environ: Mapping[str, str], number: dict[str, int]) -> list[str]:
    """Names that are needed and not set; a LOCAL_RANK that follows from the others is put into number."""
    missing = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name not in number]
    if missing == ["LOCAL_RANK"]:
        rank, size, devices, num_nodes = number["RANK"], number["WORLD_SIZE"], request.devices, request.num_nodes
        local = number.get("LOCAL_WORLD_SIZE")
        if local is None and num_nodes is not None and size > num_nodes and size % num_nodes == 0:
            local = size // num_nodes
        if local is None and devices == 1:
            local = 1
        if devices is not None and devices > 1 and (local is None or (local != devices and size == num_nodes)):
            raise ConfigError(_machines_or_processes(size, devices, num_nodes))
        if local is not None:
            number["LOCAL_RANK"], missing = rank % local, []
    addressed = request.cluster["address"] is not None and request.cluster["name"] != "env"
    if number.get("WORLD_SIZE") != 1 and not addressed and not environ.get("MASTER_ADDR"):
        missing.append("MASTER_ADDR")
    return missing


def _machines_or_processes(size: int, devices: int, num_nodes: int | None) -> str:
    """Without LOCAL_RANK, as on Kubeflow, WORLD_SIZE may count machines."""
    machines = f"cluster.node_rank=$RANK trainer.num_nodes={size}, on each machine"
    if size % devices or size == num_nodes:
        return (
            f"WORLD_SIZE must count processes, a multiple of trainer.devices={devices}, got {size} "
            f"(environment, without LOCAL_RANK), as where it counts machines. Hint: {machines}."
        )
    return (
        f"WORLD_SIZE={size} (environment, without LOCAL_RANK) may count processes or machines, and trainer.devices is "
        f"{devices}. Hint: where it counts machines: {machines}; where it counts processes: set LOCAL_RANK, or "
        f"trainer.num_nodes={size // devices}."
    )


def _incomplete(environ: Mapping[str, str], missing: list[str], size: int | None) -> str:
    there = ", ".join(f"{name}={environ[name]}" for name in ("RANK", "WORLD_SIZE") if name in environ)
    wanted = {"MASTER_ADDR": "HOST", "RANK": "RANK", "WORLD_SIZE": "WORLD_SIZE", "LOCAL_RANK": "LOCAL_RANK"}
    ways = [f"set {' '.join(f'{name}={wanted[name]}' for name in missing)} in front of the command"]
    if "LOCAL_RANK" in missing and {"RANK", "WORLD_SIZE"}.isdisjoint(missing):
        address = " cluster.address=tcp://HOST:29500" * ("MASTER_ADDR" in missing)
        ways.append(f"trainer.devices=1{address} where each machine has one process")
        ways.append(f"cluster.node_rank=$RANK trainer.num_nodes={size}{address} where RANK counts machines")
    return (
        f"{there} in the environment says that a launcher started this process, but not set: {', '.join(missing)}. "
        f"Hint: start it with torchrun; or {'; or '.join(ways)}; or `unset RANK WORLD_SIZE`."
    )


def _must_agree(request: LaunchRequest, size: int, local: int | None) -> None:
    """The launcher's world stands; options that differ from it are refused."""
    found, devices, num_nodes = [], request.devices, request.num_nodes
    leave_out = "leave trainer.devices and trainer.num_nodes out: the launcher's numbers are followed"
    if local is not None and size % local:
        found.append(
            f"LOCAL_WORLD_SIZE must be the same on every node, got {local} here, and WORLD_SIZE is "
            f"{size}. Hint: the same --nproc_per_node on each."
        )
    elif devices is not None and local is not None and devices != local:
        found.append(
            f"trainer.devices must equal LOCAL_WORLD_SIZE ({local}, from the launcher), got {devices}. "
            f"Hint: set trainer.devices={local}, or {leave_out}."
        )
    each = devices or local
    if each is not None and num_nodes is not None and each * num_nodes != size:
        hint = f"set trainer.num_nodes={size // each}" if size % each == 0 else leave_out
        found.append(
            f"trainer.devices × trainer.num_nodes must equal WORLD_SIZE ({size}), got "
            f"{each} × {num_nodes} = {each * num_nodes}. Hint: {hint}."
        )
    elif not found and (devices or num_nodes) and size % (devices or num_nodes or 1):
        key, value = ("devices", devices) if devices else ("num_nodes", num_nodes)
        found.append(f"trainer.{key} must divide WORLD_SIZE ({size}), got {value}. Hint: {leave_out}.")
    if found:
        raise ConfigError(found)


def task_name(environ: Mapping[str, str]) -> str | None:
    """Of the step, or of OpenMPI; None where this process is no task of several."""
    step = slurm_env.read_step(environ)
    return step.name if step else "OpenMPI" if openmpi.numbers(environ) else None
