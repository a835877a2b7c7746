"""List the members of a run that have arrived, and check how they are numbered and what must be equal on all: options,
code, libraries. Does not import torch."""

import functools
import hashlib
import os
import platform
import re
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from imagenet_ddp.config.keys import leaves
from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.config.validators import shown
from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.system.text import count_noun, shorten_list

LIBRARIES = ("torch", "torchvision", "lightning", "torchmetrics", "hydra-core", "omegaconf", "numpy")
# Options that may differ between nodes: ranks, interfaces, mount points, the name of node 0.
MAY_DIFFER = re.compile(
    r"cluster\.(rank|local_rank|node_rank|address)|nccl\.env(\..*IFNAME)?|data\.(root|train_dir|val_dir)|checkpoint|resume|out"
)
MAX_DIFFERENCES = 8
HINTS = {
    "the accelerator": "set trainer.accelerator=cpu, or trainer.accelerator=gpu to read why a machine has no GPU",
    "the precision": "set trainer.precision=32-true, which every device supports",
    "the code of imagenet_ddp": "install the same version of this project everywhere",
}


@dataclass(frozen=True)
class Process:
    """A process of a run. machine: an ID that only the processes of one machine share. pids: an ID of the processes
    among which the pid is unique, such as those of a container."""

    host: str
    pid: int
    machine: str
    pids: str


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

    def progress(self, seconds: float) -> str:
        """Return who has joined and who is missing."""
        arrived = list(self.arrived.values())
        numbers = {each.number for each in arrived}
        if None in numbers:
            more = count_noun(self.size - len(arrived), f"more {self.noun}")
            missing = f"Joined: {hosts(arrived)}. Missing: {more}"
        else:
            labels = [self.label(number) for number in range(self.size) if number not in numbers]
            missing = f"Missing: {shorten_list(labels, 10)}"
        return f"{len(arrived)} of {self.size} {self.noun}s joined after {seconds:.0f} s. {missing}."

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
        return found

    def assign(self, own_arrival: int) -> tuple[dict[int, int], list[Member]]:
        """Assign the free numbers, first to the leader. Return arrival -> number, and the members by number. A member
        too many gets no number."""
        free = [n for n in range(self.size) if n not in {each.number for each in self.arrived.values()}]
        numbers: dict[int, int] = {}
        for arrival, each in sorted(self.arrived.items(), key=lambda item: item[0] != own_arrival):
            if each.number is not None or free:
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
    """Return an error if ranks are not assigned machine by machine. world_info: ranks of any one process."""
    machines = [each.machine for each in members]
    local = world_info.local_world_size or max(Counter(machines).values())
    fits = (
        machine == machines[rank - rank % local] and each.local_rank == rank % local
        for rank, (machine, each) in enumerate(zip(machines, members, strict=True))
    )
    if len(members) % local == 0 and all(fits):
        return []
    places = [f"rank {rank} is local rank {each.local_rank} on {each.host}" for rank, each in enumerate(members)]
    return [
        f"the ranks must be numbered machine by machine, with {local} on each and local ranks from 0, but "
        f"{shorten_list(places, 16)}. Hint: number them in this way; or set cluster.node_rank and "
        f"trainer.num_nodes={len(members)} if RANK or cluster.rank counts machines."
    ]


# ---- what must be equal ----------------------------------------------------------------------------------------------


def this_process() -> Process:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        pids = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot = pids = ""
    machine = f"{platform.node()} {boot}"
    return Process(socket.gethostname(), os.getpid(), machine, f"{machine} {pids}")


def facts_of_command(config: CommonConfig, num_local: int | None) -> dict[str, Any]:
    """Return, as plain JSON, the facts about this command that must be equal in all commands.

    config: the resolved config, as typed on this machine. num_local: number of workers that the command starts; None if
    the command is itself a rank.
    """
    facts: dict[str, Any] = {"the code of imagenet_ddp": code_digest()}
    facts["Python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
    facts |= {library: _version(library) for library in LIBRARIES}
    if num_local is not None:
        facts["the number of workers"] = num_local
    return facts | {key: value for key, value in leaves(config).items() if not MAY_DIFFER.fullmatch(key)}


def differences(facts: Sequence[Mapping[str, Any]], noun: str) -> list[str]:
    """Return an error message for each of the first facts that differ.

    facts: facts of each command, by rank or node number. noun: rank or node.
    """
    found: list[str] = []
    for key in dict.fromkeys(key for each in facts for key in each):
        groups: dict[str, list[str]] = {}
        for number, each in enumerate(facts):
            groups.setdefault(shown(each[key]) if key in each else "not set", []).append(str(number))
        if len(groups) == 1 or all(_is_path(each.get(key)) for each in facts):
            continue
        whose = "; ".join(
            f"{value} on {noun}{'s' if len(numbers) > 1 else ''} {shorten_list(numbers, 8)}"
            for value, numbers in groups.items()
        )
        hint = HINTS.get(key, "use the same options, images and package versions everywhere")
        found.append(f"the {noun}s disagree on {key}: {whose}. Hint: {hint}.")
    return found[:MAX_DIFFERENCES]


@functools.cache
def code_digest() -> str:
    """Return a hash of this package's Python files, in the order of their names."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:  # such as a build on PYTHONPATH
        return "unknown"


def _is_path(value: object) -> bool:
    return isinstance(value, str) and value.startswith(("/", "~"))
