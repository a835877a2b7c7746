"""Compare the ranks of a run, and the commands that claim a node: numbers, options, code, libraries and GPUs. Each
function returns errors as text. Does not import torch."""

import functools
import hashlib
import os
import platform
import secrets
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from imagenet_ddp.mistakes import Mistake, meant
from imagenet_ddp.system.text import shorten_list, shown

LIBRARIES = ("torch", "torchvision", "lightning", "torchmetrics", "hydra-core", "omegaconf", "numpy")
MAX_DIFFERENCES = 8
HINTS = {
    "the accelerator": "set trainer.accelerator=cpu, or trainer.accelerator=gpu to read why a machine has no GPU",
    "the precision": "set trainer.precision=32-true, which every device supports",
    "the code of imagenet_ddp": "install the same version of this project everywhere",
}
T = TypeVar("T")


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
    """A rank that has arrived. number: its rank. node: number of the command that has started it; None if the rank
    is itself a command. size: number of ranks that it expects. equal: what must be equal in all commands. nonce: drawn
    at random, so that what is posted for other ranks is not taken for an answer to this one."""

    number: int = 0
    node: int | None = None
    size: int = 0
    job_id: str | None = None
    local_rank: int = 0
    equal: dict[str, Any] = field(default_factory=dict[str, Any])
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def of(cls, posted: Mapping[str, Any]) -> "Member":
        """Return the member that a process has posted. One of another version may post other keys; it is refused once
        `equal` has been compared. Raises TypeError if a value is of another kind."""
        values = {each.name: posted[each.name] for each in fields(cls) if each.name in posted}
        for name, value in values.items():
            if type(value) not in _KINDS[name]:
                raise TypeError(name)
        return cls(**values)


_KINDS = {
    **dict.fromkeys(("host", "machine", "pids", "nonce"), (str,)), "job_id": (str, type(None)), "equal": (dict,),
    **dict.fromkeys(("pid", "number", "size", "local_rank"), (int,)), "node": (int, type(None)),
}  # fmt: skip


def this_process() -> Process:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        pids = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot = pids = ""
    machine = f"{platform.node()} {boot}"
    return Process(socket.gethostname(), os.getpid(), machine, f"{machine} {pids}")


def hosts(members: Iterable[Process], *, pids: bool = False) -> str:
    names = [f"{each.host} (process {each.pid})" if pids else each.host for each in members]
    return ", ".join(dict.fromkeys(names))


def met_already(noun: str, number: int | None, members: Iterable[Process]) -> str:
    """Return the error of a rank or node that is one too many. number: None if it has none."""
    whose = f"{noun} {number}" if number is not None else f"one more {noun}"
    members = list(members)
    return (
        f"this is {whose}, but all {len(members)} {noun}s of the job at this address have met already: "
        f"{hosts(members, pids=True)}. Hint: set another address or port for another job."
    )


def is_first_already(noun: str, holder: Process, address: str, *to_join: str) -> Mistake:
    """Return the mistake of a second command with number 0, which may be meant for this job or for another one.
    to_join: options with which it joins this one, if they are known."""
    key = {"node": "cluster.node_rank", "rank": "cluster.rank"}[noun]
    return Mistake(
        f"another command is already {noun} 0 of the job at {address}: {hosts([holder], pids=True)}",
        (key,),
        (meant(*to_join, aim="to join it"),) if to_join else (),
        f"{'' if to_join else f'set a different {key} in each command; '}for another job, set another cluster.address "
        "or MASTER_PORT on every node",
    )


def claimed_twice(noun: str, number: int, members: Iterable[Process]) -> str:
    key = "cluster.node_rank or NODE_RANK" if noun == "node" else "RANK or cluster.rank"
    return (
        f"{noun} {number} must be unique, but is claimed by {hosts(members, pids=True)}. "
        f"Hint: set a different {key} in each command."
    )


def number_mistakes(arrived: Sequence[Member]) -> list[str]:
    """Return the errors that can be found before all ranks have arrived."""
    found: list[str] = []
    if len(jobs := _groups(arrived, lambda each: str(each.job_id))) > 1:
        found.append(
            f"two jobs use the same address: cluster.job_id is {' and '.join(sorted(jobs))} ({hosts(arrived)}). "
            "Hint: set a different address for each job."
        )
    if len(sizes := _groups(arrived, lambda each: str(each.size))) > 1:
        whose = "; ".join(f"{size} on {hosts(members)}" for size, members in sorted(sizes.items()))
        found.append(
            f"the number of ranks must be the same in all commands, got {whose}. "
            "Hint: set the same trainer.num_nodes and trainer.devices in each command."
        )
    by_number = _groups(arrived, lambda each: str(each.number))
    return found + [claimed_twice("rank", same[0].number, same) for same in by_number.values() if len(same) > 1]


def _groups(values: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    groups: dict[str, list[T]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


def layout_mistakes(members: Sequence[Member], local_world_size: int) -> list[str]:
    """Return an error if ranks are not assigned machine by machine. local_world_size: 0 if no launcher provides it."""
    machines = [each.machine for each in members]
    local = local_world_size or max(Counter(machines).values())
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


def shared_gpus(uuids: Sequence[str | None], label: Callable[[int], str]) -> list[str]:
    """Return an error for each GPU that several ranks would use. uuids: GPU of each rank; None for a rank without a
    GPU. label: returns the name of a rank."""
    ranks_of = _groups([rank for rank, uuid in enumerate(uuids) if uuid], lambda rank: str(uuids[rank]))
    return [
        f"each rank must have its own GPU, but {' and '.join(map(label, ranks))} share {uuid}. Hint: set a different "
        "LOCAL_RANK or cluster.local_rank for each process of a machine, and let CUDA_VISIBLE_DEVICES list all GPUs of "
        "the machine, or for each process its own."
        for uuid, ranks in ranks_of.items()
        if len(ranks) > 1
    ]


def facts_of_code() -> dict[str, Any]:
    """Return the versions of this code, of Python and of the libraries, which must be equal in all commands."""
    facts: dict[str, Any] = {"the code of imagenet_ddp": code_digest()}
    facts["Python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
    return facts | {library: _version(library) for library in LIBRARIES}


def differences(facts: Mapping[int, Mapping[str, Any]], noun: str) -> list[str]:
    """Return an error for each of the first facts that differ. facts: by the number of a rank or node. noun: rank or
    node."""
    found: list[str] = []
    for key in dict.fromkeys(key for each in facts.values() for key in each):
        texts = {number: shown(each[key]) if key in each else "not set" for number, each in facts.items()}
        groups = _groups(facts, texts.__getitem__)
        if len(groups) == 1 or all(_is_path(each.get(key)) for each in facts.values()):
            continue
        whose = "; ".join(
            f"{value} on {noun}{'s' if len(numbers) > 1 else ''} {shorten_list([*map(str, numbers)], 8)}"
            for value, numbers in groups.items()
        )
        hint = HINTS.get(key, "use the same options, code, images and package versions everywhere")
        found.append(f"the {noun}s disagree on {key}: {whose}. Hint: {hint}.")
    return found[:MAX_DIFFERENCES]


def _is_path(value: object) -> bool:
    """Return whether this is a path of its host, where a disk may be mounted elsewhere."""
    return isinstance(value, str) and value.startswith(("/", "~"))


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
