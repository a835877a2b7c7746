"""Check that ranks are numbered node by node: each machine has consecutive ranks, and local ranks from 0."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.distributed.rendezvous.rank_group import RankGroup


def infer_nodes(world_info: WorldInfo, group: RankGroup) -> WorldInfo:
    """Derive the nodes from the machines of the ranks, if no launcher provides the number of processes per node."""
    machines = [str(each["machine"]) for each in group.members]
    nodes = list(dict.fromkeys(machines))
    return replace(
        world_info,
        local_world_size=len(machines) // len(nodes),
        num_nodes=len(nodes),
        node_rank=nodes.index(machines[world_info.rank]),
    )


def validate(world_info: WorldInfo, members: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return errors in the assignment of ranks to machines. world_info: ranks of any one process."""
    if world_info.local_world_size:
        return _split_nodes(world_info.local_world_size, members)
    machines = [str(each["machine"]) for each in members]
    counts = {str(each["host"]): machines.count(str(each["machine"])) for each in members}
    if len(set(counts.values())) > 1:
        whose = ", ".join(f"{count} on {host}" for host, count in counts.items())
        return [
            f"every node must have the same number of processes, got {whose}. "
            "Hint: start the same number of commands on every node."
        ]
    local = len(machines) // len(set(machines))
    return _split_nodes(local, members) or _misnumbered(world_info.source, local, members)


def _split_nodes(local: int, members: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return an error if ranks of one node are on different machines.

    In that case, the given numbers count machines instead of processes.
    """
    for first in range(0, len(members), local):
        for other in range(first, first + local):
            if members[other]["machine"] != members[first]["machine"]:
                return [
                    f"ranks {first} and {other} must be on one machine ({local} processes per node), got "
                    f"{members[first]['host']} and {members[other]['host']}. Hint: set trainer.devices=1 if each "
                    f"machine has one process, or set cluster.node_rank and trainer.num_nodes={len(members)} if RANK "
                    "or cluster.rank counts machines."
                ]
    return []


def _misnumbered(source: str, local: int, members: Sequence[Mapping[str, Any]]) -> list[str]:
    given = [int(each["local_rank"]) for each in members]
    wrong = [rank for rank, local_rank in enumerate(given) if local_rank != rank % local]
    if not wrong:
        return []
    first = wrong[0] // local * local
    host = members[first]["host"]
    key, name = ("cluster.rank", "cluster.local_rank") if source == "cluster.rank" else ("RANK", "LOCAL_RANK")
    hint = ", ".join(f"{name}={rank % local} for {key}={rank}" for rank in wrong[:8]) + (", ..." if wrong[8:] else "")
    per_node = next((n for n in range(1, local) if given == [rank % n for rank in range(len(given))]), None)
    if per_node is not None and local % per_node == 0:
        num_nodes = len(given) // per_node
        hint += f"; or set trainer.num_nodes={num_nodes} everywhere if several nodes share {host}"
    return [
        f"{name} must count from 0 on each machine, {', '.join(map(str, range(local)))} for ranks {first} to "
        f"{first + local - 1} on {host}, got {', '.join(map(str, given[first : first + local]))}. Hint: set {hint}."
    ]
