"""Let the processes of a run meet at one key-value store: first its commands, one per node or per rank, then its ranks.

Each posts who it is and what must be equal. The leader (number 0, or the node that serves the store) waits for
cluster.timeout_s and posts one verdict for all. Whoever finds a mistake or fails posts the reason, which ends all waits
of the others. Keys: `commands/` and `ranks/`, each with arrival/N and verdict; `failed`, `failed_read`.
"""

import contextlib
import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from torch.distributed import DistError, PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]

from imagenet_ddp.distributed.roster import Member, Roster, differences, hosts, this_process
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.bounded_wait import Deadline
from imagenet_ddp.system.text import first_line, shorten_list

POLL_S = 0.05
GRACE_S = 5.0  # the leader's verdict may arrive this long after its own wait has ended


class SharedError(ConfigError):
    """Error that every member receives in the same words, so that only one process per machine needs to print it."""

    def __init__(self, mistakes: str | list[str], code: int = 2):
        super().__init__(mistakes)
        self.code = code


@contextlib.contextmanager
def explain_lost_store() -> Generator[None]:
    """Turn the error of a store that no longer answers into a ConfigError. The process that served it has ended, and
    has printed the reason."""
    try:
        yield
    except DistError as error:
        raise ConfigError(
            f"the rendezvous store no longer answers ({first_line(error)}): the process that serves it, rank "
            "0 or the launcher, has ended or cannot be reached. Hint: read the message of that process."
        ) from error


def post_failure(root: Store, code: int, mistakes: list[str]) -> tuple[int, list[str]]:
    """Tell all others why this process ends. Return the first failure that was posted, of this process or another.

    code: exit code, 1 for a failure, 2 for a refusal, 128 + n after signal n.
    """
    posted: Any = root.compare_set("failed", "", json.dumps([code, mistakes]))
    first_code, first_mistakes = json.loads(posted)
    return first_code, first_mistakes


def read_failure(root: Store) -> tuple[int, list[str]] | None:
    if not root.check(["failed"]):
        return None
    code, mistakes = json.loads(root.get("failed"))
    return code, mistakes


def _raise_failure(root: Store) -> None:
    """Raise SharedError if a member has failed or has found a mistake."""
    if failure := read_failure(root):
        root.add("failed_read", 1)
        raise SharedError(failure[1], failure[0])


def _wait_for_readers(root: Store, count: int, timeout_s: float | None = None) -> int:
    """Wait until `count` other members have read the failure, because this process may serve the store. Return how many
    have."""
    end = time.monotonic() + (GRACE_S if timeout_s is None else timeout_s)
    while (num_read := int(root.add("failed_read", 0))) < count and time.monotonic() < end:
        time.sleep(POLL_S)
    return num_read


def refuse(root: Store, who: str, mistakes: list[str], timeout_s: float, num_others: int | None) -> bool:
    """Tell the commands that wait here that another one was refused. Return whether any has read it. Commands that have
    already met without it are not told. num_others: how many to wait for if this process serves the store; None if
    another process does."""
    if root.check(["commands/verdict"]):
        return False
    post_failure(root, 2, [f"{who} was refused: {mistake}" for mistake in mistakes])
    return _wait_for_readers(root, num_others or 1, GRACE_S if num_others is None else timeout_s) > 0


@dataclass(frozen=True)
class Meeting:
    """Members that have met. root: the store of the run, `store` the part of these members. number: number of this
    member. members: host, pid, machine, ... of each member, by number. noun: rank or node."""

    root: Store
    store: Store
    number: int
    members: Sequence[Member]
    noun: str
    timeout_s: float

    @property
    def size(self) -> int:
        return len(self.members)

    def name(self, number: int) -> str:
        return f"{self.noun} {number} ({self.members[number].host})"

    @explain_lost_store()
    def broadcast(self, key: str, value: Any | None = None, timeout_s: float | None = None) -> Any:
        """Return the value of number 0 (plain JSON) on all members."""
        if self.number == 0:
            self.store.set(key, json.dumps(value))
            return value
        self.wait(lambda: self.store.check([key]), timeout_s or self.timeout_s, lambda: [0], key)
        return json.loads(self.store.get(key))

    @explain_lost_store()
    def abort(self, error: ConfigError) -> None:
        """Make all waits of the other members raise this member's error. Number 0, which may serve the store, first
        waits until they have read it."""
        post_failure(self.root, 2, [f"{self.name(self.number)} refused: {text}" for text in error.mistakes])
        if self.number == 0:
            _wait_for_readers(self.root, self.size - 1)

    def wait(self, done: Callable[[], bool], timeout_s: float, missing: Callable[[], Sequence[int]], what: str) -> None:
        """Wait until done() is true. missing: returns the numbers of the members that this member waits for. what:
        purpose of the wait, for messages. Raises SharedError if a member fails, and ConfigError after timeout_s."""

        def names() -> str:
            return shorten_list([self.name(number) for number in missing()], 10)

        deadline = Deadline(timeout_s)
        while not done():
            _raise_failure(self.root)
            if not deadline.pause(lambda seconds: f"Waiting for {names()} ({what}), {seconds:.0f} s.", POLL_S):
                raise ConfigError(
                    f"timed out after {deadline.elapsed_s:.0f} s waiting for {names()} ({what}). "
                    "Hint: read their own messages, and check that they are still running."
                )

    def check_equal(self, key: str, values: Mapping[str, Any], timeout_s: float | None = None) -> None:
        """Raise SharedError on all members unless all members pass the same values."""
        self.check_all(key, values, lambda of_all: differences(of_all, self.noun), timeout_s)

    @explain_lost_store()
    def check_all(
        self, key: str, value: Any, find_mistakes: Callable[[list[Any]], list[str]], timeout_s: float | None = None
    ) -> list[Any]:
        """Let number 0 check the values of all members. Return the values by number on number 0, and [] on the others.
        Raises SharedError on every member if number 0 finds mistakes."""
        timeout_s = timeout_s or self.timeout_s
        keys = [f"{key}/{number}" for number in range(self.size)]
        self.store.set(keys[self.number], json.dumps(value))
        self.store.add(f"{key}/count", 1)
        if self.number > 0:
            self.wait(lambda: self.store.check([f"{key}/verdict"]), timeout_s + GRACE_S, lambda: [0], key)
            return []
        values: list[Any] = []
        missing = lambda: [n for n in range(self.size) if not self.store.check([keys[n]])]  # noqa: E731
        try:
            self.wait(lambda: self.store.add(f"{key}/count", 0) >= self.size, timeout_s, missing, key)
            values = [json.loads(each) for each in _get_all(self.store, keys)]
            mistakes = find_mistakes(values)
        except SharedError:
            raise
        except ConfigError as error:
            mistakes = error.mistakes
        if mistakes:
            _fail_for_all(self.root, mistakes, self.size - 1)
        self.store.set(f"{key}/verdict", "")
        return values


def _fail_for_all(root: Store, mistakes: list[str], num_others: int) -> NoReturn:
    """Raise SharedError on all members."""
    code, mistakes = post_failure(root, 2, mistakes)
    root.add("failed_read", 1)
    _wait_for_readers(root, num_others + 1)
    raise SharedError(mistakes, code)


def _get_all(store: Store, keys: list[str]) -> list[bytes]:
    values: list[bytes] = []
    for begin in range(0, len(keys), 256):
        values += store.multi_get(keys[begin : begin + 256])
    return values


@explain_lost_store()
def meet(
    root: Store,
    prefix: str,
    roster: Roster,
    number: int | None,
    timeout_s: float,
    *,
    leader: bool,
    equal: Mapping[str, Any] | None = None,
    local_rank: int | None = None,
    find_mistakes: Callable[[list[Member]], list[str]] = lambda members: [],
) -> Meeting:
    """Wait until all members have arrived, each number once and with equal facts.

    number: number of this member; None if the leader assigns it. equal: what must be the same on all. local_rank: None
    for a node. find_mistakes: further checks of the members, by the leader. Raises the leader's errors on all members.
    """
    store = PrefixStore(prefix, root)
    arrival = int(store.add("arrivals", 1)) - 1
    process = vars(this_process())
    own = Member(**process, number=number, size=roster.size, job_id=roster.job_id, local_rank=local_rank,
                 equal=dict(equal or {}))  # fmt: skip
    store.set(f"arrival/{arrival}", json.dumps(vars(own)))
    deadline = Deadline(timeout_s if leader else timeout_s + GRACE_S)

    def pause() -> bool:
        def message(seconds: float) -> str:
            _update(roster, store)
            return f"Waiting: {roster.progress(seconds)}"

        return deadline.pause(message, POLL_S)

    def time_out() -> str:
        return f"{roster.progress(deadline.elapsed_s)} Hint: {roster.hint}"

    if leader:
        while True:
            _update(roster, store)
            failure = read_failure(root)
            mistakes = failure[1] if failure else roster.conflicts()
            if mistakes or len(roster.arrived) >= roster.size:
                break
            if not pause():
                mistakes = [time_out()]
                break
        numbers, members = ({}, []) if mistakes else roster.assign(arrival)
        mistakes = mistakes or differences([each.equal for each in members], roster.noun)
        mistakes = mistakes or find_mistakes(members)
        if mistakes:
            _fail_for_all(root, mistakes, int(store.add("arrivals", 0)) - 1)
        store.set("verdict", json.dumps([list(numbers.items()), [{**vars(each), "equal": {}} for each in members]]))
    else:
        while not store.check(["verdict"]):
            _raise_failure(root)
            if not pause():
                _update(roster, store)
                raise ConfigError(time_out())
    of_all: Any = json.loads(store.get("verdict"))
    numbers, members = dict(of_all[0]), [Member.of(each) for each in of_all[1]]
    if arrival not in numbers:
        whose = f"{roster.noun} {number}" if number is not None else f"one more {roster.noun}"
        raise ConfigError(
            f"this is {whose}, but all {len(members)} {roster.noun}s of the job at this address have joined already: "
            f"{hosts(members, pids=True)}. Hint: set another address or port for another job, or set cluster.job_id."
        )
    return Meeting(root, store, numbers[arrival], members, roster.noun, timeout_s)


def _update(roster: Roster, store: Store) -> None:
    """Read the new arrivals."""
    num_arrivals = int(store.add("arrivals", 0))
    new = [n for n in range(num_arrivals) if n not in roster.arrived and store.check([f"arrival/{n}"])]
    for number, text in zip(new, _get_all(store, [f"arrival/{n}" for n in new]), strict=True):
        roster.arrived[number] = Member.of(json.loads(text))
