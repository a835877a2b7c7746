"""Gather all ranks (or nodes) of a run, each once and with equal facts, or raise the same error on all of them.

Each member arrives with its facts and a number, which is its rank or node rank; the number is None if this module
assigns it. The leader (rank 0, or the node that serves the store) reads all arrivals and posts one decision for all
members.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.distributed import Store

from imagenet_ddp.distributed.rendezvous import consistency, rank_group
from imagenet_ddp.distributed.rendezvous.bounded_wait import Deadline
from imagenet_ddp.distributed.rendezvous.rank_group import RankGroup, SharedError
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import count_noun, shorten_list


@dataclass
class Roster:
    """Members that are expected, and members that have arrived.

    label: formats a number, for example as "rank 3 (node 1, local rank 1)". hint: hint for the error after a timeout.
    """

    size: int
    noun: str  # rank or node
    label: Callable[[int], str]
    hint: str
    job_id: str | None = None
    arrived: dict[int, dict[str, Any]] = field(default_factory=dict)  # by order of arrival
    refused: dict[int, dict[str, Any]] = field(default_factory=dict)  # commands that will not take part

    @property
    def is_complete(self) -> bool:
        return len(self.arrived) >= self.size

    def update(self, store: Store) -> None:
        """Read the new arrivals from the store."""
        known = self.arrived.keys() | self.refused.keys()
        count = int(store.add("arrivals", 0))
        new = [n for n in range(count) if n not in known and store.check([f"arrival/{n}"])]
        for number, text in zip(new, rank_group.get_all(store, [f"arrival/{n}" for n in new]), strict=True):
            arrival = json.loads(text)
            (self.refused if "refused" in arrival else self.arrived)[number] = arrival

    def progress(self, seconds: float) -> str:
        return f"{len(self.arrived)} of {self.size} {self.noun}s joined after {seconds:.0f} s"

    def missing(self) -> str:
        arrived = list(self.arrived.values())
        numbers = {each["number"] for each in arrived}
        if None in numbers:
            more = count_noun(self.size - len(arrived), f"more {self.noun}")
            return f"Joined: {_hosts(arrived)}. Missing: {more}."
        labels = [self.label(number) for number in range(self.size) if number not in numbers]
        return f"Missing: {shorten_list(labels, 10)}."

    def conflicts(self) -> list[str]:
        """Return the errors that can be detected before all members have arrived."""
        found = []
        arrived = list(self.arrived.values())
        job_ids = sorted({str(each["job_id"]) for each in arrived})
        if len(job_ids) > 1:
            found.append(
                f"two jobs use the same address: cluster.job_id is {' and '.join(job_ids)} ({_hosts(arrived)}). "
                "Hint: set a different address for each job."
            )
        sizes = sorted({each["size"] for each in arrived})
        if len(sizes) > 1:
            whose = "; ".join(f"{size} on {_hosts([e for e in arrived if e['size'] == size])}" for size in sizes)
            found.append(
                f"the number of {self.noun}s must be the same in all commands, got {whose}. "
                "Hint: set the same trainer.num_nodes and trainer.devices in each command."
            )
        for number in sorted({each["number"] for each in arrived if each["number"] is not None}):
            same = [each for each in arrived if each["number"] == number]
            if len(same) > 1:
                key = "cluster.node_rank or NODE_RANK" if self.noun == "node" else "RANK or cluster.rank"
                found.append(
                    f"{self.noun} {number} must be unique, but is claimed by {_hosts(same, pids=True)}. "
                    f"Hint: set a different {key} in each command."
                )
        if not found and len(arrived) > self.size:
            found.append(
                f"{len(arrived)} {self.noun}s joined, but {self.size} are expected: {_hosts(arrived, pids=True)}. "
                f"Hint: start one command for each {self.noun}, or set cluster.job_id if two jobs share an address."
            )
        return found

    def refusals(self) -> list[str]:
        """Return the mistakes of refused commands that the other members are waiting for.

        A refused command whose number has also arrived is ignored, because it was started by mistake or belongs to
        another job.
        """
        numbers = {each["number"] for each in self.arrived.values()}
        return [
            text
            for each in self.refused.values()
            if not self.is_complete
            and each["job_id"] == self.job_id
            and (each["number"] is None or each["noun"] != self.noun or each["number"] not in numbers)
            for text in _refusal_mistakes(each)
        ]


@rank_group.explain_lost_store()
def gather_ranks(
    store: Store,
    roster: Roster,
    number: int | None,
    facts: Mapping[str, Any],
    timeout_s: float,
    *,
    leader: bool,
    details: Mapping[str, Any] | None = None,
    find_mistakes: Callable[[list[dict[str, Any]]], list[str]] = lambda members: [],
    aborted: Callable[[], list[str]] = lambda: [],
) -> RankGroup:
    """Wait until all members have arrived, each number once and with equal facts.

    number: number of this member; None if the leader assigns it. details: values that are shared with the other members
    and need not be equal. find_mistakes: further checks of the members, which the leader runs. aborted: returns the
    mistakes of members that will not arrive. Raises the leader's errors on all members.
    """
    arrival = _arrive(
        store, number=number, size=roster.size, job_id=roster.job_id, facts=facts, details=dict(details or {})
    )
    deadline = Deadline(timeout_s if leader else timeout_s + rank_group.GRACE_S)

    def pause() -> bool:
        def message(seconds: float) -> str:
            roster.update(store)
            return f"{roster.progress(seconds)}, waiting. {roster.missing()}"

        return deadline.pause(message, rank_group.POLL_S)

    def time_out() -> str:
        return f"{roster.progress(deadline.elapsed_s)}. {roster.missing()} Hint: {roster.hint}"

    if leader:
        while True:
            roster.update(store)
            mistakes = roster.conflicts() or roster.refusals() or aborted()
            if mistakes or roster.is_complete:
                break
            if not pause():
                mistakes = [time_out()]
                break
        decision: dict[str, Any] = {"mistakes": mistakes} if mistakes else _decide(roster, arrival, find_mistakes)
        store.set("decision", json.dumps(decision))
        if decision["mistakes"]:
            rank_group.wait_for_readers(store, "decision", int(store.add("arrivals", 0)) - 1)
    else:
        while not store.check(["decision"]):
            if not pause():
                roster.update(store)
                raise ConfigError(time_out())
        decision = json.loads(store.get("decision"))
        store.add("decision/read", 1)
    if decision["mistakes"]:
        raise SharedError(decision["mistakes"])
    numbers, members = {int(key): value for key, value in decision["numbers"].items()}, decision["members"]
    if arrival not in numbers:
        raise ConfigError(_too_late(roster, number, members))
    return RankGroup(store, numbers[arrival], members, roster.noun, timeout_s)


def _arrive(store: Store, **content: Any) -> int:
    arrival = int(store.add("arrivals", 1)) - 1
    store.set(f"arrival/{arrival}", json.dumps({**consistency.this_process(), **content}))
    return arrival


def _decide(
    roster: Roster, own_arrival: int, find_mistakes: Callable[[list[dict[str, Any]]], list[str]]
) -> dict[str, Any]:
    """Assign the free numbers, first to the leader, and check all members."""
    free = [n for n in range(roster.size) if n not in {each["number"] for each in roster.arrived.values()}]
    numbers: dict[int, int] = {}
    for arrival, each in sorted(roster.arrived.items(), key=lambda item: item[0] != own_arrival):
        numbers[arrival] = each["number"] if each["number"] is not None else free.pop(0)
    ordered = [roster.arrived[arrival] for arrival, _ in sorted(numbers.items(), key=lambda item: item[1])]
    members = [{**{key: each[key] for key in ("host", "pid", "machine")}, **each["details"]} for each in ordered]
    mistakes = consistency.differences([each["facts"] for each in ordered], roster.noun) or find_mistakes(members)
    return {"mistakes": mistakes, "numbers": numbers, "members": members}


def send_refusal(store: Store, number: int | None, noun: str, job_id: str | None, mistakes: list[str]) -> bool:
    """Tell the members that gather at this store that this command was refused. Return whether they were reached.

    Members that have already gathered without this command receive nothing.
    """
    if store.check(["decision"]):
        return False
    _arrive(store, number=number, noun=noun, job_id=job_id, refused=mistakes)
    end = time.monotonic() + rank_group.GRACE_S
    while not store.check(["decision"]):
        if time.monotonic() > end:
            return False
        time.sleep(rank_group.POLL_S)
    store.add("decision/read", 1)
    return bool(json.loads(store.get("decision"))["mistakes"])


def refuse_everyone(
    store: Store, number: int | None, noun: str, size: int, mistakes: list[str], timeout_s: float
) -> bool:
    """Post the leader's own refusal, and wait up to timeout_s seconds for size - 1 other members to read it.

    Return whether any member has read it.
    """
    refusal = {**consistency.this_process(), "number": number, "noun": noun, "refused": mistakes}
    store.set("decision", json.dumps({"mistakes": _refusal_mistakes(refusal)}))
    rank_group.wait_for_readers(store, "decision", size - 1, timeout_s)
    return int(store.add("decision/read", 0)) > 0


def _refusal_mistakes(refusal: Mapping[str, Any]) -> list[str]:
    number, noun = refusal["number"], refusal["noun"]
    who = f"one {noun}" if number is None else f"{noun} {number}"
    return [f"{who} ({refusal['host']}) was refused: {mistake}" for mistake in refusal["refused"]]


def _too_late(roster: Roster, number: int | None, members: Sequence[Mapping[str, Any]]) -> str:
    whose = f"{roster.noun} {number}" if number is not None else f"one more {roster.noun}"
    return (
        f"this is {whose}, but all {len(members)} {roster.noun}s of the job at this address have joined already: "
        f"{_hosts(members, pids=True)}. Hint: set another address or port for another job, or set cluster.job_id."
    )


def _hosts(members: Sequence[Mapping[str, Any]], *, pids: bool = False) -> str:
    names = [f"{each['host']} (process {each['pid']})" if pids else each["host"] for each in members]
    return ", ".join(dict.fromkeys(names))
