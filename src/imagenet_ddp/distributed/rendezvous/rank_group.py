"""Let the ranks (or nodes) that have joined exchange values through their store: broadcast, compare and abort."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.distributed import DistError, PrefixStore, Store

from imagenet_ddp.distributed.rendezvous import consistency
from imagenet_ddp.distributed.rendezvous.bounded_wait import Deadline
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import first_line, shorten_list

POLL_S = 0.05
GRACE_S = 5.0  # number 0's decision may arrive this long after number 0's own wait has ended
ABORTED = "aborted"


class SharedError(ConfigError):
    """Error that every member receives in the same words, so that only one process per machine needs to print it."""


def abort_mistakes(store: Store) -> list[str]:
    """Return the mistakes of a member that has aborted the group at this store; [] if no member has."""
    return json.loads(store.get(ABORTED)) if store.check([ABORTED]) else []


@contextlib.contextmanager
def explain_lost_store() -> Iterator[None]:
    """Turn the error of a store that no longer answers into a ConfigError.

    The process that served the store has ended, and has printed the reason.
    """
    try:
        yield
    except DistError as error:
        raise ConfigError(
            f"the rendezvous store no longer answers ({first_line(error)}): the process that serves it, rank "
            "0 or the launcher, has ended or cannot be reached. Hint: read the message of that process."
        ) from error


@dataclass(frozen=True)
class RankGroup:
    """Members that have joined.

    number: number of this member. members: host, pid, machine, ... of each member, by number.
    """

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

    @explain_lost_store()
    def broadcast(self, key: str, value: Any | None = None, timeout_s: float | None = None) -> Any:
        """Return the value of number 0 (plain JSON) on all members.

        Raises SharedError if number 0 called broadcast_error.
        """
        if self.number == 0:
            self.store.set(key, json.dumps({"value": value}))
            return value
        self.wait(lambda: self.store.check([key]), timeout_s or self.timeout_s, lambda: [0], key)
        message = json.loads(self.store.get(key))
        if "mistakes" in message:
            self.store.add(f"{key}/read", 1)
            raise SharedError([f"{self.noun} 0 refused: {mistake}" for mistake in message["mistakes"]])
        return message["value"]

    @explain_lost_store()
    def broadcast_error(self, key: str, error: ConfigError) -> None:
        """Make the broadcast of all other members raise this error of number 0. Return once they have read it."""
        if self.number == 0 and self.size > 1:
            self.store.set(key, json.dumps({"mistakes": error.mistakes}))
            wait_for_readers(self.store, key, self.size - 1)

    @explain_lost_store()
    def abort(self, error: ConfigError) -> None:
        """Make all waits of the other members raise this member's error."""
        self.store.set(ABORTED, json.dumps([f"{self.name(self.number)}: {text}" for text in error.mistakes]))

    def wait(self, done: Callable[[], bool], timeout_s: float, missing: Callable[[], Sequence[int]], what: str) -> None:
        """Wait until done() is true.

        missing: returns the numbers of the members that this member is waiting for. what: purpose of the wait, for
        messages. Raises SharedError if a member aborts, and ConfigError after timeout_s seconds.
        """

        def names() -> str:
            return shorten_list([self.name(number) for number in missing()], 10)

        deadline = Deadline(timeout_s)
        while True:
            if mistakes := abort_mistakes(self.store):
                raise SharedError(mistakes)
            if done():
                return
            if not deadline.pause(lambda seconds: f"Waiting for {names()} ({what}), {seconds:.0f} s.", POLL_S):
                raise ConfigError(
                    f"timed out after {deadline.elapsed_s:.0f} s waiting for {names()} ({what}). "
                    "Hint: read their own messages, and check that they are still running."
                )

    def check_equal(self, key: str, facts: Mapping[str, Any], timeout_s: float | None = None) -> None:
        """Raise SharedError on all members unless all members pass the same facts."""
        self.check_all(key, facts, lambda all_facts: consistency.differences(all_facts, self.noun), timeout_s)

    @explain_lost_store()
    def check_all(
        self,
        key: str,
        facts: Any,
        find_mistakes: Callable[[list[Any]], list[str]],
        timeout_s: float | None = None,
    ) -> list[Any]:
        """Let member 0 check the facts of all members.

        Return the facts by number on member 0, and [] on the other members. Raises SharedError on every member if
        member 0 finds mistakes.
        """
        timeout_s, all_facts = timeout_s or self.timeout_s, list[Any]()
        store = PrefixStore(key, self.store)
        store.set(f"facts/{self.number}", json.dumps(facts))
        store.add("num_given", 1)
        if self.number == 0:
            missing = lambda: [n for n in range(self.size) if not store.check([f"facts/{n}"])]  # noqa: E731
            try:
                self.wait(lambda: store.add("num_given", 0) >= self.size, timeout_s, missing, key)
                all_facts = [json.loads(each) for each in get_all(store, [f"facts/{n}" for n in range(self.size)])]
                mistakes = find_mistakes(all_facts)
            except SharedError:  # a member has aborted, and all members receive its error
                raise
            except ConfigError as error:
                mistakes = error.mistakes
            store.set("decision", json.dumps(mistakes))
            if mistakes:
                wait_for_readers(store, "decision", self.size - 1)
        else:
            self.wait(lambda: store.check(["decision"]), timeout_s + GRACE_S, lambda: [0], key)
            mistakes = json.loads(store.get("decision"))
            store.add("decision/read", 1)
        if mistakes:
            raise SharedError(mistakes)
        return all_facts


def get_all(store: Store, keys: list[str]) -> list[bytes]:
    values: list[bytes] = []
    for begin in range(0, len(keys), 256):
        values += store.multi_get(keys[begin : begin + 256])
    return values


def wait_for_readers(store: Store, key: str, count: int, timeout_s: float | None = None) -> None:
    """Wait until `count` other members have read the key. The process that serves the store may end after that.

    timeout_s: longest wait in seconds; None means GRACE_S.
    """
    end = time.monotonic() + (GRACE_S if timeout_s is None else timeout_s)
    while int(store.add(f"{key}/read", 0)) < count and time.monotonic() < end:
        time.sleep(POLL_S)
