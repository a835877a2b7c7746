"""List the members of a run that have arrived, and check how they are numbered. Does not import torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from imagenet_ddp.distributed.facts import Process
from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.system.text import count_noun, shorten_list


@dataclass(frozen=True)
class Member(Process):
    """A process that has arrived. number: as given, None if the leader assigns it. size: number of members that it
    expects. equal: what must be equal on all. local_rank: None for a node."""

    number: int | None = None
    size: int = 0
    job_id: str | None = None
    local_rank: int | None = None
    equal: dict[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, posted: Mapping[str, Any]) -> "Member":
        """Return the member that a process has posted. One of another version may post other keys; it is refused once
        `equal` has been compared."""
        return cls(**{each.name: posted[each.name] for each in fields(cls) if each.name in posted})


@dataclass
class Roster:
    """Members that are expected, and members that have arrived. label: formats a number, for example as "rank 3 (node
    1, local rank 1)". hint: hint for the error after a timeout."""

    size: int
    noun: str  # rank or node
    label: Callable[[int], str]
    hint: str
    job_id: str | None = None
    arrived: dict[int, Member] = field(default_factory=dict[int, Member])  # by order of arrival

    @property
    def is_complete(self) -> bool:
        return len(self.arrived) >= self.size

    def progress(self, seconds: float) -> str:
        return f"{len(self.arrived)} of {self.size} {self.noun}s joined after {seconds:.0f} s"

    def missing(self) -> str:
        arrived = list(self.arrived.values())
        numbers = {each.number for each in arrived}
        if None in numbers:
            more = count_noun(self.size - len(arrived), f"more {self.noun}")
            return f"Joined: {hosts(arrived)}. Missing: {more}."
        labels = [self.label(number) for number in range(self.size) if number not in numbers]
        return f"Missing: {shorten_list(labels, 10)}."

    def conflicts(self) -> list[str]:
        """Return the errors that can be detected before all members have arrived."""
        found, noun, arrived = list[str](), self.noun, list(self.arrived.values())
        job_ids = sorted({str(each.job_id) for each in arrived})
        if len(job_ids) > 1:
            found.append(
                f"two jobs use the same address: cluster.job_id is {' and '.join(job_ids)} ({hosts(arrived)}). "
                "Hint: set a different address for each job."
            )
        sizes = sorted({each.size for each in arrived})
        if len(sizes) > 1:
            whose = "; ".join(f"{size} on {hosts([each for each in arrived if each.size == size])}" for size in sizes)
            found.append(
                f"the number of {noun}s must be the same in all commands, got {whose}. "
                "Hint: set the same trainer.num_nodes and trainer.devices in each command."
            )
        for number in sorted({each.number for each in arrived if each.number is not None}):
            same = [each for each in arrived if each.number == number]
            if len(same) > 1:
                key = "cluster.node_rank or NODE_RANK" if noun == "node" else "RANK or cluster.rank"
                found.append(
                    f"{noun} {number} must be unique, but is claimed by {hosts(same, pids=True)}. "
                    f"Hint: set a different {key} in each command."
                )
        if not found and len(arrived) > self.size:
            found.append(
                f"{len(arrived)} {noun}s joined, but {self.size} are expected: {hosts(arrived, pids=True)}. "
                f"Hint: start one command for each {noun}, or set cluster.job_id if two jobs share an address."
            )
        return found

    def assign(self, own_arrival: int) -> tuple[dict[int, int], list[Member]]:
        """Assign the free numbers, first to the leader. Return arrival -> number, and the members by number."""
        free = [n for n in range(self.size) if n not in {each.number for each in self.arrived.values()}]
        numbers: dict[int, int] = {}
        for arrival, each in sorted(self.arrived.items(), key=lambda item: item[0] != own_arrival):
            numbers[arrival] = each.number if each.number is not None else free.pop(0)
        return numbers, [self.arrived[arrival] for arrival in sorted(numbers, key=lambda arrival: numbers[arrival])]


def hosts(members: Sequence[Member], *, pids: bool = False) -> str:
    names = [f"{each.host} (process {each.pid})" if pids else each.host for each in members]
    return ", ".join(dict.fromkeys(names))


def infer_nodes(world_info: WorldInfo, members: Sequence[Member]) -> WorldInfo:
    """Derive the nodes from the machines of the ranks, if no launcher provides the number of processes per node."""
    machines = [each.machine for each in members]
    nodes = list(dict.fromkeys(machines))
    return replace(
        world_info,
        local_world_size=len(machines) // len(nodes),
        num_nodes=len(nodes),
        node_rank=nodes.index(machines[world_info.rank]),
    )


def layout_mistakes(world_info: WorldInfo, members: Sequence[Member]) -> list[str]:
    """Return errors in the assignment of ranks to machines. world_info: ranks of any one process."""
    machines = [each.machine for each in members]
    counts = {each.host: machines.count(each.machine) for each in members}
    local = world_info.local_world_size or max(counts.values())
    if not world_info.local_world_size and len(set(counts.values())) > 1:
        whose = ", ".join(f"{count} on {host}" for host, count in counts.items())
        return [
            f"every node must have the same number of processes, got {whose}. "
            "Hint: start the same number of commands on every node."
        ]
    for rank, each in enumerate(members):
        first = rank - rank % local
        if machines[rank] != machines[first] or each.local_rank != rank % local:
            return [
                f"rank {rank} must be local rank {rank % local} on {members[first].host}, the machine of rank "
                f"{first} ({local} processes per node), got local rank {each.local_rank} on {each.host}. "
                "Hint: number the ranks machine by machine, and the local ranks from 0 on each; or set "
                f"cluster.node_rank and trainer.num_nodes={len(members)} if RANK or cluster.rank counts machines."
            ]
    return []
