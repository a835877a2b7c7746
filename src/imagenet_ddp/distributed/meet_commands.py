"""Let the commands of a run, one per node or one per rank, meet and compare their options. Tell them if one of them was
refused."""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from imagenet_ddp.distributed import find_store, meet, store
from imagenet_ddp.distributed.compare_members import Member, layout_mistakes, this_process
from imagenet_ddp.distributed.meet import Expected, Meeting
from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.distributed.place import Address, Place
from imagenet_ddp.system import console
from imagenet_ddp.system.bounded_wait import run_bounded

WAIT_S = 8.0  # a refused command waits for others that start at the same time, and may need longer to import torch
SEND_S = 30.0  # limit for finding the other commands and telling them of the refusal
MAX_MISTAKES = 5


def meet_commands(place: Place, facts: Mapping[str, Any], num_local: int, timeout_s: float) -> tuple[Place, Meeting]:
    """Wait for the other commands, and check that all agree. Return this command's place, with the numbers that follow
    from those of the others, and the meeting. If the commands are ranks, it is the only meeting of the ranks.

    facts: what must be equal in all commands, as plain JSON. num_local: number of ranks that the command of a node
    starts. timeout_s: longest wait for the others. Raises ConfigError, with the same error on all commands once they
    have met.
    """
    number, size = place.number, place.size
    who = f"{place.noun} {number} of {size}" if number is not None else f"one of {size} nodes"
    found = find_store.find(place, timeout_s, who)
    own = Member(
        **vars(this_process()),
        number=0 if number is None and found.is_server else number,
        size=size,
        job_id=place.job_id,
        local_rank=None if place.is_node else place.local_rank,
        equal=dict(facts),
    )
    expected = Expected(size, place.noun, place.label, _hint(place, found.host, found.port))
    root, local = store.of_attempt(found.store, place), place.local_world_size
    place = replace(place, address=Address(found.host, found.port))
    if place.is_node:
        meeting = meet.meet(root, own, expected, timeout_s)
        number = meeting.number
        rank, world_size = number * num_local, size * num_local
        return replace(place, rank=rank, node_rank=number, world_size=world_size, local_world_size=num_local), meeting
    meeting = meet.meet(root, own, expected, timeout_s, lambda members: layout_mistakes(members, local))
    if not local:  # no launcher provides it: the ranks of one machine are a node
        machines = [each.machine for each in meeting.members]
        nodes = list(dict.fromkeys(machines))
        node_rank = nodes.index(machines[place.rank])
        place = replace(place, local_world_size=size // len(nodes), num_nodes=len(nodes), node_rank=node_rank)
    return place, meeting


def _hint(place: Place, host: str, port: int) -> str:
    """Return a hint about the likely causes of a missing rank."""
    reach = f"Check that the missing machine reaches {host}:{port}."
    if place.is_node and interfaces.is_loopback(host):
        reach = f"On every node, {host} is the node itself, so set the address at which the others reach node 0."
    return (
        "start the command on the missing machine, too, or read the message there. "
        f"{reach} To wait longer, set cluster.timeout_s."
    )


def report_refusal(refused: Place, mistakes: Sequence[str]) -> None:
    """End the other commands of the run with the same mistakes, unless they have met without this one.

    Node 0 or rank 0 serves the store only for this purpose. If no other command arrives, this takes WAIT_S seconds.
    """
    number, noun = refused.number, refused.noun
    name = f"this {noun}" if number is None else f"{noun} {number}"
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    def inform() -> bool:
        found = find_store.find(refused, WAIT_S, name)
        root = store.of_attempt(found.store, refused)
        if root.has(f"{noun}s/verdict"):
            return False
        who = f"{name.replace('this', 'one')} ({socket.gethostname()})"
        serves = number == 0 or found.is_server
        readers, timeout_s = (refused.size - 1, WAIT_S) if serves else (1, meet.GRACE_S)
        return meet.refuse(root, who, list(mistakes)[:MAX_MISTAKES], readers, timeout_s)

    if run_bounded(inform, SEND_S):  # the time is limited, because any program may use the port
        console.print_message(f"The other commands at {refused.address} have been informed that {name} was refused.")
