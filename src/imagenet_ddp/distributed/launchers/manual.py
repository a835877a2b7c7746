"""Commands that somebody typed: one per process, with cluster.rank; or one per node. No torch here."""

from collections.abc import Mapping
from typing import Any

from imagenet_ddp.distributed.launchers.request import LaunchRequest
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, WorldInfo
from imagenet_ddp.errors import ConfigError

KEYS = ("rank", "local_rank", "world_size")


def one_per_process(request: LaunchRequest, environ: Mapping[str, str]) -> LaunchInfo | None:
    """cluster.rank, cluster.local_rank, cluster.world_size: as the old tutorials' --rank and --world-size. A key that
    is not set is read from the variable of its name."""
    cluster = request.cluster
    given = {f"cluster.{key}": cluster[key] for key in KEYS if cluster[key] is not None}
    if not given:
        return None
    rank, local_rank, size = (_number(cluster[key], environ.get(key.upper())) for key in KEYS)
    if size is not None:
        _ask_back(request, environ, rank, size)
    devices = request.devices
    if devices is None and request.num_nodes and size is not None and size % request.num_nodes == 0:
        devices = size // request.num_nodes
    missing = [f"cluster.{key}" for key, value in (("rank", rank), ("world_size", size)) if value is None]
    if local_rank is None and size is not None and devices is None and size > 1:
        missing.append("cluster.local_rank")
    if missing:
        words = {"cluster.rank": "RANK", "cluster.world_size": "WORLD_SIZE", "cluster.local_rank": "LOCAL_RANK"}
        line = " ".join(f"{key}={words[key]}" for key in missing)
        one_each = " where each machine has one process: trainer.devices=1;" * (missing == ["cluster.local_rank"])
        node = words["cluster.rank"] if rank is None else rank
        raise ConfigError(
            f"{', '.join(f'{key}={value}' for key, value in given.items())} means one command per process, but not "
            f"set: {', '.join(missing)}. Hint: {line}, of this process (its number, processes in all, its number on "
            f"its machine);{one_each} where one command is one machine: trainer.num_nodes={max(size or 2, 2)} "
            f"cluster.node_rank={node}{_place(request, environ)}, without {' and '.join(given)}."
        )
    assert rank is not None and size is not None
    found = []
    if rank >= size:
        found.append(
            f"cluster.rank must be below cluster.world_size ({size}), got {rank}. "
            f"Hint: ranks count from 0, to cluster.rank={size - 1}."
        )
    if request.num_nodes is not None and size != request.num_nodes * (devices or 0):
        wanted = f"trainer.num_nodes × trainer.devices = {request.num_nodes} × {devices}"
        if devices is None:
            wanted = f"a multiple of trainer.num_nodes ({request.num_nodes})"
        found.append(
            f"cluster.world_size must be {wanted}, got {size}. "
            "Hint: leave trainer.num_nodes and trainer.devices out, or set what fits."
        )
    if found:
        raise ConfigError(found)
    if size == 1:
        return LaunchInfo(world_info=WorldInfo(source="cluster.rank"))
    address = request.address(environ)
    if address is None:
        raise ConfigError(
            f"cluster.world_size={size} needs a place where the processes meet, but there is no cluster.address and "
            "no MASTER_ADDR. Hint: on each cluster.address=tcp://HOST:29500, the address of rank 0's machine."
        )
    if local_rank is None:
        assert devices is not None
        local_rank = rank % devices
    node_rank = cluster["node_rank"]
    world_info = WorldInfo(
        rank=rank,
        local_rank=local_rank,
        node_rank=node_rank if node_rank is not None else rank // devices if devices else 0,
        world_size=size,
        local_world_size=devices or 0,
        num_nodes=size // devices if devices else 1,
        address=address.host,
        port=address.port,
        store_is_served=False,
        source="cluster.rank",
    )
    if wrong := world_info.misnumbered(("cluster.rank", "cluster.local_rank", "cluster.node_rank")):
        raise ConfigError(wrong)
    return LaunchInfo("cluster.rank", address, world_info, world_info.num_nodes, world_info.node_rank, manual=True)


def _number(key: Any, variable: str | None) -> int | None:
    if key is not None:
        return int(key)
    return int(variable) if variable is not None and variable.isdecimal() else None


def _place(request: LaunchRequest, environ: Mapping[str, str]) -> str:
    """The address to type beside the number of nodes, where there is none yet."""
    return "" if request.address(environ) else " cluster.address=tcp://HOST:29500"


def _ask_back(request: LaunchRequest, environ: Mapping[str, str], rank: int | None, size: int) -> None:
    """In some tutorials rank and world size count machines."""
    devices = request.devices or 1
    if devices > 1 and (size % devices or size == request.num_nodes):
        raise ConfigError(
            f"cluster.world_size counts processes and must be a multiple of trainer.devices={devices}, "
            f"got {size}: did you mean trainer.num_nodes={size} (machines)? "
            f"Hint: one command per machine: trainer.num_nodes={size} "
            f"cluster.node_rank={rank if rank is not None else 'RANK'}{_place(request, environ)}, without "
            "cluster.world_size and cluster.rank."
        )


def one_per_node(request: LaunchRequest, environ: Mapping[str, str]) -> LaunchInfo | None:
    """trainer.num_nodes > 1: where do the nodes meet, and which is this one?"""
    cluster, num_nodes = request.cluster, request.num_nodes
    sources = {"cluster.node_rank": cluster["node_rank"]}
    sources |= {name: environ.get(name) for name in ("NODE_RANK", "GROUP_RANK")}
    source = next((key for key, value in sources.items() if value is not None), None)
    node_rank = str(sources[source]) if source else None
    # a variable may be left over from something else, an option is meant
    meant = source == "cluster.node_rank" or (source is not None and cluster["name"] == "env")
    if num_nodes is None and node_rank is not None and (meant or node_rank != "0"):
        unset = f", or `unset {source}` where it is left over" if source != "cluster.node_rank" else ""
        raise ConfigError(
            f"{source}={node_rank} says that there are several nodes, but trainer.num_nodes is not set. "
            f"Hint: trainer.num_nodes=<number of nodes>{_place(request, environ)}, the same on each{unset}."
        )
    if node_rank is not None and num_nodes is not None and (num_nodes > 1 or meant):
        last = num_nodes - 1
        if not node_rank.isdecimal() or int(node_rank) > last:
            raise ConfigError(
                f"{source} must be {f'an integer from 0 to {last}' if last else '0'} "
                f"(trainer.num_nodes={num_nodes}), got {node_rank or 'empty'}. Hint: nodes count from 0, "
                f"cluster.node_rank={f'<0 to {last}>' if last else '0'}."
            )
    address = request.address(environ)
    if (num_nodes or 1) <= 1:
        if cluster["address"] is not None:
            raise ConfigError(
                f"cluster.address={cluster['address']} is where several nodes meet, but trainer.num_nodes is "
                f"{num_nodes or 'not set'}. Hint: trainer.num_nodes=2, or leave cluster.address out."
            )
        return None
    assert num_nodes is not None
    if address is None:
        raise ConfigError(
            f"trainer.num_nodes={num_nodes} needs a place where the nodes meet, but there is no cluster.address, no "
            "MASTER_ADDR in the environment, and no launcher's RANK and WORLD_SIZE. Hint: type on each node "
            f"`MASTER_ADDR=<address of node 0> {request.line}`."
        )
    source = "MASTER_ADDR" if cluster["address"] is None else "cluster.address"
    return LaunchInfo(source, address, None, num_nodes, int(node_rank) if node_rank is not None else None, manual=True)
