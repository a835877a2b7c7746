"""Connect the commands of a run, one per node or one per rank, to one store, where number 0 decides on the job for all.

Number 0 serves the store until it ends. A command that starts the ranks of its node claims a node number with one
write, from which the numbers of its ranks follow. Nothing is compared here: the ranks do so when they meet (meet.py).
Keys: node/N, rank/0, job, num_left, and those of a failure, which ends all waits.
"""

import contextlib
import functools
import hashlib
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from imagenet_ddp.distributed import store
from imagenet_ddp.distributed.compare_members import (
    Process,
    claimed_twice,
    facts_of_code,
    is_first_already,
    met_already,
    this_process,
)  # fmt: skip
from imagenet_ddp.distributed.failure import (
    LARGE,
    POLL_S,
    ask,
    explain_lost_store,
    post_failure,
    raise_failure,
    refuse,
)  # fmt: skip
from imagenet_ddp.distributed.messages import Messages, as_posted
from imagenet_ddp.distributed.place import Address, Place
from imagenet_ddp.distributed.store import FoundStore
from imagenet_ddp.distributed.store_file import find_by_file
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.system import console, interfaces
from imagenet_ddp.system.bounded_wait import Deadline, run_bounded
from imagenet_ddp.system.say_once import say_once

WAIT_S = 8.0  # a refused command waits for others that start at the same time, and may need longer to import torch
SEND_S = 30.0  # limit for finding the other commands and telling them of the refusal
MAX_MISTAKES = 5
FAIL_S = 2.0  # longest wait for a store that may not answer any more


@dataclass(frozen=True)
class Commands:
    """The connection of a command to the others of its run. place: of this command, with the numbers of its node, and
    of the first of its ranks. facts: what must be equal in all commands, for their ranks to compare; plain JSON."""

    place: Place
    facts: dict[str, Any]
    root: Messages
    timeout_s: float

    @property
    def name(self) -> str:
        return f"{self.place.noun} {self.place.number} ({socket.gethostname()})"

    @explain_lost_store()
    def post_job(self, content: Mapping[str, Any]) -> None:
        """Tell the other commands what number 0 has decided. Their ranks compare it, which also binds it to this run:
        a recorded job of another run would differ."""
        posted = [this_process().machine, content]
        ask(lambda: self.root.set("job", posted), self.timeout_s)
        self._note(ask(lambda: self.root.get("job"), self.timeout_s))

    @explain_lost_store()
    def wait_for_job(self) -> tuple[Any, bool]:
        """Return (what number 0 has decided, whether it is on another machine). Raises ConfigError after the time
        limit, SharedError if a command fails."""
        deadline, first = Deadline(self.timeout_s, say_once), f"{self.place.noun} 0"

        def is_posted() -> bool:
            raise_failure(self.root)
            return self.root.has("job")

        while not ask(is_posted, deadline.remaining_s):
            late = f"{first} has not sent the job"
            if not deadline.pause(lambda seconds, late=late: f"Waiting: {late}, {seconds:.0f} s.", POLL_S):
                raise ConfigError(f"{late} after {self.timeout_s:.0f} s. Hint: read its messages.")
        try:
            posted = ask(lambda: self.root.get("job"), deadline.remaining_s)
        except TimeoutError as error:
            raise ConfigError(f"what {first} has sent does not arrive. Hint: {LARGE}.") from error
        self._note(posted)
        with as_posted("job"):
            machine, content = posted
        return content, machine != this_process().machine

    def _note(self, job: Any) -> None:
        self.facts["the job"] = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:12]

    @explain_lost_store()
    def first_host(self) -> str:
        with as_posted("node/0"):
            return str(ask(lambda: self.root.get("node/0"), self.timeout_s)["host"])

    @explain_lost_store()
    def refuse(self, error: ConfigError) -> None:
        """Make all waits of the other commands raise this command's error."""
        num_readers = self.place.size - 1 if self.place.number == 0 else 0
        ask(lambda: refuse(self.root, self.name, list(map(str, error.mistakes)), num_readers, WAIT_S), 2 * WAIT_S)

    def fail(self, code: int, reason: str) -> None:
        """Tell the others that this command ends, over a store that may not answer any more."""
        run_bounded(lambda: post_failure(self.root, code, [reason]), FAIL_S)

    def leave(self, timeout_s: float) -> None:
        """Leave. Number 0, which may serve the store, waits up to timeout_s until all others have left."""
        deadline = Deadline(timeout_s)  # of the thread, too: Python's exit aborts while it is in C++ code

        def leave() -> None:
            self.root.add("num_left", 1)
            is_first, size = self.place.number == 0, self.place.size
            while is_first and self.root.add("num_left", 0) < size and not deadline.is_over:
                time.sleep(POLL_S)

        run_bounded(leave, timeout_s)


def connect_commands(place: Place, options: Mapping[str, Any], num_local: int, timeout_s: float) -> Commands:
    """Find or serve the store of the run, and claim a number for the command of a node.

    options: those that must be equal in all commands, as plain JSON. num_local: number of ranks that the command of a
    node starts. timeout_s: longest wait for the store. Raises ConfigError.
    """
    number, size = place.number, place.size
    who = f"{place.noun} {number} of {size}" if number is not None else f"one of {size} nodes"
    found = find_store(place, timeout_s, who)
    root, place = store.of_attempt(found.store, place), replace(place, address=Address(found.host, found.port))
    if place.is_node:
        number = _claim(root, place, found.is_server, timeout_s)
        ranks = {"rank": number * num_local, "world_size": size * num_local, "local_world_size": num_local}
        place = replace(place, node_rank=number, **ranks)
    elif found.is_server:
        root.set("rank/0", vars(this_process()))
    code = facts_of_code() | ({"the number of workers": num_local} if place.is_node else {})
    return Commands(place, {**code, **options}, root, timeout_s)


@explain_lost_store()
def _claim(root: Messages, place: Place, is_server: bool, timeout_s: float) -> int:
    """Claim the given node number, or else the first free one. The node that serves the store is node 0."""
    own, given = {**vars(this_process()), "nonce": secrets.token_hex(8)}, place.node_rank
    holder = None
    for number in [given] if given is not None else [0] if is_server else range(1, place.size):
        holder = ask(lambda number=number: root.set_first(f"node/{number}", own), timeout_s)
        if holder == own:
            return number
    keys = [f"node/{number}" for number in range(place.size)]
    nodes = ask(lambda: [root.get(key) for key in keys if root.has(key)], timeout_s)
    with as_posted("node"):
        claims = [_process(each) for each in nodes]
        if given is None or len(claims) == place.size:
            raise ConfigError(met_already("node", given, claims))
        mistake = claimed_twice("node", given, [_process(holder), this_process()])
    ask(lambda: post_failure(root, 2, [mistake]), timeout_s)
    raise ConfigError(mistake)


def _process(posted: Any) -> Process:
    return Process(*(posted[name] for name in ("host", "pid", "machine", "pids")))


def find_store(place: Place, timeout_s: float, who: str) -> FoundStore:
    """Serve the store if this command is node 0 or rank 0; otherwise wait up to timeout_s seconds for it.

    who: name of this process, for messages. Raises ConfigError if the store cannot be served or reached.
    """
    address, number = place.address, place.number
    assert address is not None
    if address.file is not None:
        found = find_by_file(address.file, number, place.job_id, timeout_s, who)
        if number == 0 and not found.is_server:
            another = f"{address} belongs to another job, which is running. Hint: use a separate file for each job."
            raise ConfigError(_second_first(lambda: found.store, place) or another)
        return found
    assert address.host
    host, port, is_served = address.host, address.port, place.store_is_served
    if place.hosts_move:
        store.wait_for_name(host, timeout_s, is_own=number == 0 and not is_served)
    if not is_served and (number == 0 or (number is None and interfaces.is_local(store.resolve(host)))):
        try:
            return FoundStore(store.serve(host, port), host, port, is_server=True)
        except store.PortInUseError:
            if number == 0:
                find = functools.partial(store.try_client, host, port, who)
                if place.is_typed and (mistake := _second_first(find, place)):
                    raise ConfigError(mistake) from None
                raise
            # with two nodes on one machine, the other node was first; or another program uses the port
            with contextlib.suppress(ConfigError):
                return FoundStore(store.client(host, port, store.BUSY_S, who), host, port)
            raise
    found = store.client(host, port, timeout_s, who, ours=not is_served, hosts_move=place.hosts_move)
    return FoundStore(found, host, port)


def _second_first(find: Callable[[], Store | None], place: Place) -> str | Mistake | None:
    """Return the mistake of a second command with number 0; None if the store that this function finds is not that of
    another one with the same secret. Nothing is posted there, because that job may be another one, which goes on."""
    noun, size = place.noun, place.size

    def claims() -> dict[int, Process]:
        found = find()
        assert found is not None
        found.set_timeout(timedelta(seconds=store.ANSWER_S))
        root = store.of_attempt(found, place)
        claims = {0: _process(root.get(f"{noun}/0"))}  # waits for one that has started at the same time
        return claims | {each: _process(root.get(key)) for each in range(1, size) if root.has(key := f"{noun}/{each}")}

    if (claimed := run_bounded(claims, store.BUSY_S)) is None:
        return None
    if len(claimed) == size:
        return met_already(noun, 0, claimed.values())
    to_join: list[str] = []
    if place.is_node:  # ranks claim no numbers before all meet
        to_join = [f"cluster.node_rank={next(each for each in range(size) if each not in claimed)}"]
        # the corrected line has no variables
        to_join += [f"cluster.address={place.address}"] if place.launcher == "MASTER_ADDR" else []
    return is_first_already(noun, claimed[0], str(place.address), *to_join)


def report_refusal(refused: Place, mistakes: Sequence[str]) -> None:
    """End the other commands of the run with the same mistakes, unless their ranks have met without this one.

    Node 0 or rank 0 serves the store only for this purpose. If no other command arrives, this takes WAIT_S seconds.
    """
    number, noun = refused.number, refused.noun
    name = f"this {noun}" if number is None else f"{noun} {number}"
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    def inform() -> bool:
        try:
            found = find_store(refused, WAIT_S, name)
        except ConfigError:
            address = refused.address
            if number != 0 or not address or not address.host or interfaces.is_local(store.resolve(address.host)):
                raise
            # the number may be the mistake, and another machine serve the store
            found = FoundStore(store.client(address.host, address.port, WAIT_S, name), address.host, address.port)
        root = store.of_attempt(found.store, refused)
        if root.has("ranks/verdict"):
            return False
        who = f"{name.replace('this', 'one')} ({socket.gethostname()})"
        serves = number == 0 or found.is_server  # else the store keeps what is posted there
        is_read = refuse(root, who, list(mistakes)[:MAX_MISTAKES], refused.size - 1 if serves else 0, WAIT_S)
        return is_read or not serves

    if run_bounded(inform, SEND_S):  # the time is limited, because any program may use the port
        console.print_message(f"The other commands at {refused.address} have been informed that {name} was refused.")
