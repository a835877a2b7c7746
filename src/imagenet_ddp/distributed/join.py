"""Let the commands of a run, one per node or one per rank, join and compare their options. Tell them if one of them was
refused, and send them a file that they lack."""

import atexit
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from imagenet_ddp.distributed import meet, store
from imagenet_ddp.distributed.compare_members import Member, layout_mistakes, this_process
from imagenet_ddp.distributed.meet import Expected, Meeting, explain_lost_store
from imagenet_ddp.distributed.messages import as_posted
from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.distributed.place import Address, Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system import console
from imagenet_ddp.system.bounded_wait import run_bounded
from imagenet_ddp.system.files import sha256

CHUNK_BYTES = 4 * 2**20  # torch's store refuses values above 8 MiB
WAIT_S = 8.0  # a refused command waits for others that start at the same time, and may need longer to import torch
SEND_S = 30.0  # limit for finding the other commands and telling them of the refusal
MAX_MISTAKES = 5


def join_commands(place: Place, facts: Mapping[str, Any], num_local: int, timeout_s: float) -> tuple[Meeting, Place]:
    """Wait for the other commands, and check that all agree. Return them, and the ranks of this process, or of the
    first worker that this command starts.

    facts: what must be equal in all commands, as plain JSON. num_local: number of workers that this command starts if
    it is not itself a rank. timeout_s: longest wait for the others. Raises ConfigError, with the same error on all
    commands once they have joined.
    """
    number, size = place.number, place.size
    who = f"{place.noun} {number} of {size}" if number is not None else f"one of {size} nodes"
    found = store.find(place, timeout_s, who)
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
    placed = replace(place, address=Address(found.host, found.port))
    if place.is_node:
        meeting = meet.meet(root, "commands", own, expected, timeout_s)
        return meeting, replace(
            placed,
            rank=meeting.number * num_local,
            node_rank=meeting.number,
            world_size=size * num_local,
            local_world_size=num_local,
            is_node=False,
        )
    meeting = meet.meet(root, "commands", own, expected, timeout_s, lambda members: layout_mistakes(members, local))
    if not local:  # no launcher provides it: the ranks of one machine are a node
        machines = [each.machine for each in meeting.members]
        nodes = list(dict.fromkeys(machines))
        node_rank = nodes.index(machines[placed.rank])
        placed = replace(placed, local_world_size=size // len(nodes), num_nodes=len(nodes), node_rank=node_rank)
    return meeting, placed


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
        found = store.find(refused, WAIT_S, name)
        root = store.of_attempt(found.store, refused)
        if root.has("commands/verdict"):
            return False
        who = f"{name.replace('this', 'one')} ({socket.gethostname()})"
        serves = number == 0 or found.is_server
        readers, timeout_s = (refused.size - 1, WAIT_S) if serves else (1, meet.GRACE_S)
        return meet.refuse(root, who, list(mistakes)[:MAX_MISTAKES], readers, timeout_s)

    if run_bounded(inform, SEND_S):  # the time is limited, because any program may use the port
        console.print_message(f"The other commands at {refused.address} have been informed that {name} was refused.")


@explain_lost_store()
def share_file(meeting: Meeting, path: Path | None) -> Path | None:
    """Return the path of number 0's file on all members; None if number 0 has no file. The path is that of a local file
    with the same path and content, or else of a copy, which is sent through the store."""
    own = None
    if meeting.number == 0 and path is not None and meeting.size > 1:
        own = {"path": str(path), "bytes": path.stat().st_size, "sha256": sha256(path)}
    of_first = meeting.broadcast("file", own)
    if of_first is None:
        return path
    with as_posted("file"):
        path, num_bytes, digest = Path(of_first["path"]), int(of_first["bytes"]), str(of_first["sha256"])
    has_it = meeting.number == 0 or (path.is_file() and path.stat().st_size == num_bytes and sha256(path) == digest)
    if meeting.agree("who has the file", has_it, all):
        return path
    chunks, raw = [f"file/{begin}" for begin in range(0, num_bytes, CHUNK_BYTES)], meeting.store.store
    if meeting.number == 0:
        with path.open("rb") as file:
            for chunk in chunks:
                content: Any = file.read(CHUNK_BYTES)  # torch's type stubs do not accept bytes
                meet.ask(lambda chunk=chunk, content=content: raw.set(chunk, content), meeting.timeout_s)
    meeting.agree("the file is sent", None, len)
    if not has_it:
        folder = tempfile.mkdtemp(prefix="imagenet_ddp_")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)  # by then, this process's workers have read the file
        path = Path(folder) / path.name
        with path.open("wb") as file:
            for chunk in chunks:
                file.write(meet.ask(lambda chunk=chunk: raw.get(chunk), meeting.timeout_s))
        if sha256(path) != digest:  # the digest is signed, the chunks are not
            raise ConfigError(f"{path.name} must arrive as node 0 has it, but did not. Hint: run the command again.")
    meeting.agree("the file has arrived", None, len)
    if meeting.number == 0:
        for chunk in chunks:
            raw.delete_key(chunk)
    return path
