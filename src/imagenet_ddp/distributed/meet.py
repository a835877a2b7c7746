"""Let the ranks of a run meet once at one key-value store, say who is missing, and let rank 0 decide for all.

Each rank posts who it is. Rank 0 waits for cluster.timeout_s and posts one verdict for all. Whoever finds a mistake or
fails posts the reason, which ends all waits of the others (failure.py). Keys: arrivals, arrival/N and verdict, under
`ranks/` and the name of each later agreement.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from imagenet_ddp.distributed.compare_members import (
    Member,
    differences,
    layout_mistakes,
    met_already,
    number_mistakes,
    this_process,
)  # fmt: skip
from imagenet_ddp.distributed.failure import (
    ANSWER_S,
    GRACE_S,
    LARGE,
    POLL_S,
    ask,
    explain_lost_store,
    post_failure,
    raise_failure,
    refuse,
)  # fmt: skip
from imagenet_ddp.distributed.messages import Messages, as_posted
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.bounded_wait import Deadline
from imagenet_ddp.system.interfaces import is_loopback
from imagenet_ddp.system.say_once import say_once
from imagenet_ddp.system.text import shorten_list

READ_AT_ONCE = 256  # entries in one round trip: thousands of ranks that poll the store make each round trip slow
MAX_READERS = 64  # if there are more ranks, only rank 0 reads the entries of all


@dataclass(frozen=True)
class Expected:
    """The ranks that are waited for. names: returns the names of these ranks. hint: for the error after a timeout.
    who: what waits, and where, for the lines on the way."""

    size: int
    names: Callable[[Sequence[int]], Sequence[str]]
    hint: str
    who: str = ""

    def missing(self, arrived: Sequence[Mapping[str, Any]], seconds: float) -> str:
        """Return who is missing after this time. arrived: what the others have posted."""
        numbers = {each["number"] for each in arrived}
        names = self.names([number for number in range(self.size) if number not in numbers])
        missing = shorten_list(names, 10) or f"the answer of {self.names([0])[0]}"
        return f"{len(arrived)} of {self.size} ranks met within {seconds:.0f} s. Missing: {missing}."


@explain_lost_store()
def _decide_for_all(
    root: Messages,
    store: Messages,
    own: Mapping[str, Any],
    decide: Callable[[list[Any]], Any],
    expected: Expected,
    timeout_s: float,
) -> tuple[int, Any]:
    """Post an entry, and return (its position in the order of arrival, rank 0's verdict).

    own: the entry, with its rank as `number`. decide: returns the verdict, given the entries so far, or None while some
    are missing; if it raises a ConfigError, all ranks raise its mistakes.
    """
    decides, arrived, num_arrivals = own["number"] == 0, dict[int, Any](), 0  # arrived: by position
    deadline = Deadline(timeout_s if decides else timeout_s + GRACE_S, say_once)

    def arrive() -> int:
        position = store.add("arrivals", 1) - 1
        store.set(f"arrival/{position}", own)
        return position

    def read_arrived() -> list[Any]:
        nonlocal num_arrivals
        num_arrivals = store.add("arrivals", 0)
        unread = [position for position in range(num_arrivals) if position not in arrived]
        for begin in range(0, len(unread), READ_AT_ONCE):
            keys = {position: f"arrival/{position}" for position in unread[begin : begin + READ_AT_ONCE]}
            if not store.has(*keys.values()):  # one is counted, but not yet posted
                keys = {position: key for position, key in keys.items() if store.has(key)}
            if keys:
                arrived.update(zip(keys, store.get_many([*keys.values()]), strict=True))
        return [*arrived.values()]

    def progress(seconds: float) -> str:
        if decides or expected.size <= MAX_READERS:
            return expected.missing(ask(read_arrived, deadline.remaining_s), seconds)
        return f"{expected.names([0])[0]} has not answered after {seconds:.0f} s. Its messages say who is missing."

    def fail_all(mistakes: list[str]) -> None:
        post_failure(root, 2, mistakes)
        raise_failure(root, store)

    def look_for_verdict() -> list[Any] | None:
        if store.has("verdict"):
            return [store.get("verdict")]
        raise_failure(root, store if decides else None)
        try:
            verdict = decide(read_arrived()) if decides else None
        except ConfigError as error:
            return fail_all(list(map(str, error.mistakes)))
        if verdict is None:
            return None
        store.set("verdict", verdict)
        return [store.get("verdict")]

    position = ask(arrive, timeout_s)
    while (verdict := ask(look_for_verdict, deadline.remaining_s)) is None:
        if not deadline.pause(lambda seconds: f"Waiting{expected.who}: {progress(seconds)}", POLL_S):
            late = f"{progress(deadline.elapsed_s)} Hint: {expected.hint}"
            if lost := num_arrivals - len(arrived):  # of each, the small packet that counts it has arrived
                late = f"{progress(deadline.elapsed_s)} What {lost} of them sent has not arrived. Hint: {LARGE}."
            if decides:
                ask(lambda late=late: fail_all([late]), ANSWER_S)
            raise ConfigError(late)
    return position, verdict[0]


@dataclass(frozen=True)
class Meeting:
    """Ranks that have met. root: the store of the run, `store` the part of these ranks. place: of this rank, with its
    node. members: host, pid, machine, ... of each rank."""

    root: Messages
    store: Messages
    place: Place
    members: Sequence[Member]
    timeout_s: float

    @property
    def number(self) -> int:
        return self.place.rank

    @property
    def size(self) -> int:
        return len(self.members)

    def name(self, number: int) -> str:
        return f"rank {number} ({self.members[number].host})"

    def command(self, node: int) -> str:
        """Return the name of the command that has started the ranks of a node."""
        host = self.members[node * self.place.local_world_size].host
        return f"the command of node {node} ({host}, {self.place.ranks_of(node)})"

    def agree(self, key: str, value: Any, decide: Callable[[list[Any]], Any], timeout_s: float | None = None) -> Any:
        """Return on all ranks what rank 0 decides, given the values of all by rank. Values are plain JSON.

        key: name of this agreement, used once. Raises SharedError on all ranks if decide raises a ConfigError, or if
        a rank is missing after timeout_s.
        """

        def decide_if_complete(arrived: list[Any]) -> list[Any] | None:
            with as_posted(key):
                by_number = {each["number"]: each["value"] for each in arrived}
                complete = len(by_number) == self.size
                values = [by_number[number] for number in range(self.size)] if complete else []
            return [decide(values)] if complete else None

        hint = f"read their messages, and check that they are still running. The others wait for them at `{key}`."
        own, store = {"number": self.number, "value": value}, self.store.under(key)
        expected = Expected(self.size, lambda ranks: list(map(self.name, ranks)), hint)
        verdict = _decide_for_all(self.root, store, own, decide_if_complete, expected, timeout_s or self.timeout_s)[1]
        with as_posted(key):
            (agreed,) = verdict
        return agreed

    def broadcast(self, key: str, value: Any = None) -> Any:
        return self.agree(key, value, lambda values: values[0])

    def require_equal(
        self, key: str, facts: Mapping[str, Any], timeout_s: float | None = None, value: Any = None
    ) -> list[Any]:
        """Raise SharedError on all ranks unless all ranks pass the same facts. Return the values of all ranks."""

        def compare(of_ranks: list[Any]) -> list[Any]:
            if mistakes := differences({rank: facts for rank, (facts, _) in enumerate(of_ranks)}, "rank"):
                raise ConfigError(mistakes)
            return [value for _, value in of_ranks]

        return self.agree(key, [facts, value], compare, timeout_s)

    @explain_lost_store()
    def refuse(self, error: ConfigError) -> None:
        """Make all waits of the other ranks raise this rank's error."""
        num_readers = self.size - 1 if self.number == 0 else 0
        ask(lambda: refuse(self.root, self.name(self.number), list(map(str, error.mistakes)), num_readers), 2 * GRACE_S)


def meet(root: Messages, place: Place, facts: Mapping[str, Any], timeout_s: float) -> Meeting:
    """Wait until all ranks have arrived, each once, machine by machine and with equal facts. If no launcher has said
    how many ranks a node has, the ranks of one machine are a node.

    facts: what must be equal in the commands of all ranks, as plain JSON. Raises the mistakes that rank 0 finds on all
    ranks.
    """
    node = place.node_rank if place.is_worker and place.num_nodes > 1 else None
    own = Member(
        **vars(this_process()), number=place.rank, node=node, size=place.world_size, job_id=place.job_id,
        local_rank=place.local_rank, equal=dict(facts),
    )  # fmt: skip
    local = place.local_world_size

    def decide(arrived: list[Any]) -> Any:
        with as_posted("arrival"):
            members = sorted(map(Member.of, arrived), key=lambda each: each.number)
        mistakes = number_mistakes(members)
        if len(members) < place.world_size and not mistakes:
            return None
        of_commands = {each.number if each.node is None else each.node: each.equal for each in members}
        mistakes += differences(of_commands, "rank" if node is None else "node")
        if mistakes := mistakes or layout_mistakes(members, local):
            raise ConfigError(mistakes)
        return [{**vars(each), "equal": {}} for each in members]

    who = f" as node {node} at {place.address}" if node is not None else ""
    expected = Expected(place.world_size, place.names, _hint(place), who)
    position, posted = _decide_for_all(root, root.under("ranks"), vars(own), decide, expected, timeout_s)
    with as_posted("verdict"):
        members = [*map(Member.of, posted)]
        if not members or (position < len(members) and members[place.rank].nonce != own.nonce):
            raise ValueError("an answer to other ranks")
    if position >= len(members):
        raise ConfigError(met_already("rank", place.rank, members))
    if not local:
        machines = [each.machine for each in members]
        nodes = list(dict.fromkeys(machines))
        local, node_rank = len(members) // len(nodes), nodes.index(machines[place.rank])
        place = replace(place, local_world_size=local, num_nodes=len(nodes), node_rank=node_rank)
    return Meeting(root, root.under("ranks").among([each.nonce for each in members]), place, members, timeout_s)


def _hint(place: Place) -> str:
    """Return a hint about the likely causes of a missing rank."""
    if place.is_worker and place.num_nodes == 1:
        return "read that rank's messages, or set a longer cluster.timeout_s."
    reach = f"Check that the missing machine has {place.address} in its line, too, and reaches it."
    if place.num_nodes > 1 and place.host and is_loopback(place.host):
        reach = f"On every node, {place.host} is the node itself, so set the address at which the others reach node 0."
    return (
        "start the command on the missing machine, too, or read the message there. "
        f"{reach} To wait longer, set cluster.timeout_s."
    )
