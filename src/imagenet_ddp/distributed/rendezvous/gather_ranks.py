"""All who take part are there, each once, with the same facts; or everyone is told what is wrong, and nothing starts.

Each arrives with a number (its rank, or its node rank; or none, where it is assigned here) and its facts. One of
them, the chief (rank 0, or the node that serves the store), reads all arrivals and posts one verdict that all obey.
So a mistake is one message, the same everywhere, however many there are.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.distributed import DistError, PrefixStore, Store

from imagenet_ddp.distributed.rendezvous import consistency
from imagenet_ddp.distributed.rendezvous.timeout import Deadline
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import count_noun, first_line, shorten_list

POLL_S = 0.05
GIVEN_UP = "given_up"
GRACE_S = 5.0  # the chief's verdict comes that much later than its own wait ends


class SharedError(ConfigError):
    """Mistakes that all members are told in the same words, so that one of each machine may say them."""


def abort_mistakes(store: Store) -> list[str]:
    """Of the one who gave up in the gathering at this store; [] where none has."""
    return json.loads(store.get(GIVEN_UP)) if store.check([GIVEN_UP]) else []


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """A store that no longer answers is a ConfigError: who serves it has ended, and has said why itself."""
    try:
        yield
    except DistError as error:
        raise ConfigError(
            f"the rendezvous store no longer answers ({first_line(error)}): the process that serves it, that "
            "of rank 0, or the launcher, has ended or cannot be reached. Hint: look at its own message."
        ) from error


@dataclass(frozen=True)
class RankGroup:
    """Those who have met. number: this one's; members: (host, pid, ...) of each, by number."""

    store: Store
    number: int
    members: Sequence[Mapping[str, Any]]
    noun: str  # rank or node
    timeout_s: float

    @property
    def size(self) -> int:
        return len(self.members)

    def name(self, number: int) -> str:
        return f"{self.noun} {number} ({self.members[number]['host']})"

    @answered()
    def tell(self, key: str, value: str | None, timeout_s: float | None = None) -> str:
        """What number 0 gave as value, on all."""
        if self.number == 0:
            assert value is not None
            self.store.set(key, value)
            return value
        self.wait(lambda: self.store.check([key]), timeout_s or self.timeout_s, lambda: [0], f"on {key}")
        return self.store.get(key).decode()

    @answered()
    def give_up(self, error: ConfigError) -> None:
        """This one's own mistake, after all have met: the others no longer wait, and say the same."""
        self.store.set(GIVEN_UP, json.dumps([f"{self.name(self.number)}: {text}" for text in error.mistakes]))

    def wait(self, done: Callable[[], bool], timeout_s: float, lacking: Callable[[], Sequence[int]], what: str) -> None:
        """Until done, or one has given up. lacking: the numbers that are waited for, what: for which word of theirs."""

        def names() -> str:
            numbers = lacking()
            return shorten_list([self.name(number) for number in numbers], 10)

        patience = Deadline(timeout_s)
        while True:
            if mistakes := abort_mistakes(self.store):
                raise SharedError(mistakes)
            if done():
                return
            if not patience.lasts(lambda seconds: f"Waiting for {names()} {what}, {seconds:.0f} s.", POLL_S):
                raise ConfigError(
                    f"waited {patience.seconds:.0f} s for the word of {names()} {what}, in vain. "
                    "Hint: look at their own messages; are they still running?"
                )

    @answered()
    def refuse(self, error: ConfigError, key: str) -> None:
        """Number 0's own mistakes, to all who wait for its word on key; they have them when this returns."""
        if self.number == 0 and self.size > 1:
            self.store.set(key, json.dumps({"mistakes": error.mistakes}))
            _wait_for_readers(self.store, key, self.size - 1)

    @answered()
    def broadcast(self, key: str, value: Any | None, timeout_s: float | None = None) -> Any:
        """tell, for a plain value; ConfigError where number 0 refused."""
        told = json.loads(self.tell(key, None if self.number else json.dumps({"value": value}), timeout_s))
        if "mistakes" in told:
            self.store.add(f"{key}/read", 1)
            raise SharedError([f"{self.noun} 0 refused: {mistake}" for mistake in told["mistakes"]])
        return told["value"]

    def compare(self, key: str, mine: Mapping[str, Any], timeout_s: float | None = None) -> None:
        """The same facts on all, or ConfigError on all. A member that is still busy is waited for, and named."""
        self.collect(key, mine, lambda all_facts: consistency.differences(all_facts, self.noun), timeout_s)

    @answered()
    def collect(
        self,
        key: str,
        mine: Mapping[str, Any],
        judge: Callable[[list[Any]], list[str]],
        timeout_s: float | None = None,
    ) -> None:
        """Number 0 judges what all give; its sentences, if any, are everyone's ConfigError."""
        bound_s = timeout_s or self.timeout_s
        store = PrefixStore(key, self.store)
        store.set(f"of/{self.number}", json.dumps(mine))
        store.add("given", 1)
        if self.number == 0:
            lacking = lambda: [n for n in range(self.size) if not store.check([f"of/{n}"])]  # noqa: E731
            try:
                self.wait(lambda: store.add("given", 0) >= self.size, bound_s, lacking, f"on {key}")
                mistakes = judge([json.loads(each) for each in _get_all(store, [f"of/{n}" for n in range(self.size)])])
            except SharedError:  # one has given up, and all know
                raise
            except ConfigError as error:
                mistakes = error.mistakes
            store.set("verdict", json.dumps(mistakes))
            if mistakes:
                _wait_for_readers(store, "verdict", self.size - 1)
        else:
            self.wait(lambda: store.check(["verdict"]), bound_s + GRACE_S, lambda: [0], f"on {key}")
            mistakes = json.loads(store.get("verdict"))
            store.add("verdict/read", 1)
        if mistakes:
            raise SharedError(mistakes)


@dataclass
class Roster:
    """Who is expected. label: what a number is called, "rank 3 (node 1, local rank 1)"."""

    size: int
    noun: str
    label: Callable[[int], str]
    hint: str
    job_id: str | None = None
    assigned: bool = False  # numbers are given here, not brought along
    arrived: dict[int, dict[str, Any]] = field(default_factory=dict)  # by arrival
    refused: dict[int, dict[str, Any]] = field(default_factory=dict)  # the same, of those that will not take part


@answered()
def gather_ranks(
    store: Store,
    roster: Roster,
    number: int | None,
    mine: Mapping[str, Any],
    timeout_s: float,
    *,
    leader: bool,
    about: Mapping[str, Any] | None = None,
    judge: Callable[[list[dict[str, Any]]], list[str]] = lambda members: [],
    aborted: Callable[[], list[str]] = lambda: [],
) -> RankGroup:
    """Waits until all have arrived, each number once, with equal facts. Raises the chief's ConfigError on all.
    about: what the others are told of this member, and need not be equal. judge: the chief's further mistakes;
    given_up: those of somebody who will not come."""
    arrival = int(store.add("arrivals", 1)) - 1
    me = {**consistency.this_process(), "number": number, "size": roster.size, "job_id": roster.job_id, "facts": mine}
    store.set(f"arrival/{arrival}", json.dumps({**me, "about": dict(about or {})}))
    patience = Deadline(timeout_s if leader else timeout_s + GRACE_S)
    if leader:
        verdict = _judge(store, roster, arrival, patience, judge, aborted)
        store.set("verdict", json.dumps(verdict))
        if verdict["mistakes"]:
            _wait_for_readers(store, "verdict", int(store.add("arrivals", 0)) - 1)
    else:
        while not store.check(["verdict"]):
            if not patience.lasts(lambda seconds: _waiting(store, roster, seconds), POLL_S):
                _read_arrivals(store, roster)
                raise ConfigError(_lacking(roster, patience.seconds))
        verdict = json.loads(store.get("verdict"))
        store.add("verdict/read", 1)
    if verdict["mistakes"]:
        raise SharedError(verdict["mistakes"])
    numbers = {int(key): value for key, value in verdict["numbers"].items()}
    if arrival not in numbers:
        raise ConfigError(_too_late(roster, number, verdict["members"]))
    return RankGroup(store, numbers[arrival], verdict["members"], roster.noun, timeout_s)


def report_refusal(store: Store, number: int | None, noun: str, job_id: str | None, mistakes: list[str]) -> bool:
    """Tell those who gather at this store that this command was refused, and why; whether they heard it. Nothing is
    told once they have met: they did so without this one."""
    if store.check(["verdict"]):
        return False
    arrival = int(store.add("arrivals", 1)) - 1
    me = {**consistency.this_process(), "number": number, "noun": noun, "job_id": job_id, "refused": mistakes}
    store.set(f"arrival/{arrival}", json.dumps(me))
    end = time.monotonic() + GRACE_S
    while not store.check(["verdict"]):
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    store.add("verdict/read", 1)
    return bool(json.loads(store.get("verdict"))["mistakes"])


def refuse_everyone(store: Store, number: int | None, noun: str, size: int, mistakes: list[str]) -> None:
    """The chief itself was refused: all who come, up to size of them, are told why."""
    me = {**consistency.this_process(), "number": number, "noun": noun, "refused": mistakes}
    store.set("verdict", json.dumps({"mistakes": _said_of_refused(me), "numbers": {}, "members": []}))
    _wait_for_readers(store, "verdict", size - 1)


def _said_of_refused(one: Mapping[str, Any]) -> list[str]:
    number = one["number"]
    who = f"one {one['noun']}" if number is None else f"{one['noun']} {number}"
    return [f"{who} ({one['host']}) was refused: {mistake}" for mistake in one["refused"]]


def _refused(roster: Roster) -> list[str]:
    """Of those the others wait for. A number that is there already was refused by mistake, or in another job."""
    there = {each["number"] for each in roster.arrived.values()}
    missing = [
        each
        for each in roster.refused.values()
        if each["job_id"] == roster.job_id
        and (each["number"] is None or each["noun"] != roster.noun or each["number"] not in there)
    ]
    return [text for each in missing for text in _said_of_refused(each)] if len(roster.arrived) < roster.size else []


def _judge(
    store: Store,
    roster: Roster,
    own: int,
    patience: Deadline,
    judge: Callable[[list[dict[str, Any]]], list[str]],
    aborted: Callable[[], list[str]],
) -> dict[str, Any]:
    """The chief's part."""
    while True:
        _read_arrivals(store, roster)
        mistakes = _unfit(roster) or _refused(roster) or aborted()
        if mistakes or len(roster.arrived) >= roster.size:
            break
        if not patience.lasts(lambda seconds: _waiting(store, roster, seconds), POLL_S):
            mistakes = [_lacking(roster, patience.seconds)]
            break
    numbers: dict[int, int] = {}
    members: list[dict[str, Any]] = []
    if not mistakes:
        free = [n for n in range(roster.size) if n not in {each["number"] for each in roster.arrived.values()}]
        for arrival, each in sorted(roster.arrived.items(), key=lambda item: item[0] != own):
            numbers[arrival] = each["number"] if each["number"] is not None else free.pop(0)
        ordered = [roster.arrived[arrival] for arrival, _ in sorted(numbers.items(), key=lambda item: item[1])]
        mistakes = consistency.differences([each["facts"] for each in ordered], roster.noun)
        members = [{**{key: each[key] for key in ("host", "pid", "machine")}, **each["about"]} for each in ordered]
        mistakes = mistakes or judge(members)
    return {"mistakes": mistakes, "numbers": numbers, "members": members}


def _read_arrivals(store: Store, roster: Roster) -> None:
    count = int(store.add("arrivals", 0))
    known = roster.arrived.keys() | roster.refused.keys()
    new = [n for n in range(count) if n not in known and store.check([f"arrival/{n}"])]
    for number, text in zip(new, _get_all(store, [f"arrival/{n}" for n in new]), strict=True):
        one = json.loads(text)
        (roster.refused if "refused" in one else roster.arrived)[number] = one


def _unfit(roster: Roster) -> list[str]:
    """Who cannot be part of this, whoever else comes."""
    found = []
    everyone = list(roster.arrived.values())
    ids = sorted({str(each["job_id"]) for each in everyone})
    if len(ids) > 1:
        found.append(
            f"two jobs meet at one address: cluster.job_id is {' and '.join(ids)} ({_hosts(everyone)}). "
            "Hint: an address of its own for each job."
        )
    sizes = sorted({each["size"] for each in everyone})
    if len(sizes) > 1:
        whose = "; ".join(f"{size} by {_hosts([e for e in everyone if e['size'] == size])}" for size in sizes)
        found.append(
            f"the number of {roster.noun}s is not the same on all: {whose}. Hint: the same trainer.num_nodes and "
            "trainer.devices on each."
        )
    for number in sorted({each["number"] for each in everyone if each["number"] is not None}):
        same = [each for each in everyone if each["number"] == number]
        if len(same) > 1:
            key = "cluster.node_rank or NODE_RANK" if roster.noun == "node" else "RANK or cluster.rank"
            found.append(
                f"{roster.noun} {number} must be given once, got claimed by {_hosts(same, pids=True)}. "
                f"Hint: {key} must differ on each."
            )
    if not found and len(everyone) > roster.size:
        found.append(
            f"{len(everyone)} {roster.noun}s came, but {roster.size} are expected: {_hosts(everyone, pids=True)}. "
            "Hint: start the command once on each, or set cluster.job_id where two jobs share an address."
        )
    return found


def _lacking(roster: Roster, seconds: float) -> str:
    joined = f"{len(roster.arrived)} of {roster.size} {roster.noun}s joined after {seconds:.0f} s"
    return f"{joined}. {_missing(roster)} Hint: {roster.hint}"


def _waiting(store: Store, roster: Roster, seconds: float) -> str:
    _read_arrivals(store, roster)
    joined = f"{len(roster.arrived)} of {roster.size} {roster.noun}s joined after {seconds:.0f} s"
    return f"{joined}, waiting. {_missing(roster)}"


def _missing(roster: Roster) -> str:
    everyone = list(roster.arrived.values())
    given = {each["number"] for each in everyone}
    if roster.assigned and None in given:
        more = roster.size - len(everyone)
        return f"There: {_hosts(everyone)}. Missing: {count_noun(more, f'more {roster.noun}')}."
    names = [roster.label(number) for number in range(roster.size) if number not in given]
    return f"Missing: {shorten_list(names, 10)}."


def _too_late(roster: Roster, number: int | None, members: Sequence[Mapping[str, Any]]) -> str:
    whose = f"{roster.noun} {number}" if number is not None else f"one more {roster.noun}"
    return (
        f"this is {whose}, but all {len(members)} {roster.noun}s of the job at this address are there already: "
        f"{_hosts(members, pids=True)}. Hint: another address or port for another job, or cluster.job_id."
    )


def _hosts(members: Sequence[Mapping[str, Any]], *, pids: bool = False) -> str:
    names = [f"{each['host']} (process {each['pid']})" if pids else each["host"] for each in members]
    return ", ".join(dict.fromkeys(names))


def _get_all(store: Store, keys: list[str]) -> list[bytes]:
    found: list[bytes] = []
    for begin in range(0, len(keys), 256):
        found += store.multi_get(keys[begin : begin + 256])
    return found


def _wait_for_readers(store: Store, key: str, count: int) -> None:
    """Whoever serves the store may end only when the others have read why."""
    end = time.monotonic() + GRACE_S
    while int(store.add(f"{key}/read", 0)) < count and time.monotonic() < end:
        time.sleep(POLL_S)
