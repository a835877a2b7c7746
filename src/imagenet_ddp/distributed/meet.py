"""Let the processes of a run meet at one key-value store, say who is missing, and let number 0 decide for all.

Ranks meet once. The commands that start the ranks of their nodes meet before, as nodes. Each member posts who it is.
Number 0 waits for cluster.timeout_s and posts one verdict for all. Whoever finds a mistake or fails posts the reason,
which ends all waits of the others. Keys: arrivals, arrival/N and verdict, under `nodes/`, `ranks/` and the name of each
later agreement; `failed`, `failed_read`.
"""

import contextlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch.distributed import DistError  # pyright: ignore[reportPrivateImportUsage]

from imagenet_ddp.distributed.compare_members import Member, differences, hosts, number_mistakes
from imagenet_ddp.distributed.messages import Messages, as_posted
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.bounded_wait import Deadline, call_bounded, run_bounded
from imagenet_ddp.system.text import count_noun, first_line, shorten_list

POLL_S = 0.05
FAIL_S = 2.0  # longest wait for a store that may not answer any more
GRACE_S = 5.0  # the verdict may arrive this long after number 0's own wait has ended
ANSWER_S = 10.0  # shortest time limit for an answer of the store, more than GRACE_S
READ_AT_ONCE = 256  # entries in one round trip: thousands of ranks that poll the store make each round trip slow
MAX_READERS = 64  # if there are more members, only number 0 reads the entries of all
LARGE = (
    "large packets are lost on the way, so set a smaller MTU for this network on every node (such as `ip link set dev "
    "INTERFACE mtu 1400`), or run `sysctl net.ipv4.tcp_mtu_probing=1` there, or let ICMP through the firewalls"
)

T = TypeVar("T")


class SharedError(ConfigError):
    """Error that every member receives in the same words, so that only one process per machine needs to print it."""

    def __init__(self, mistakes: str | list[str], code: int = 2):
        super().__init__(mistakes)
        self.code = code


@contextlib.contextmanager
def explain_lost_store() -> Generator[None]:
    """Turn the error of a store that no longer answers into a ConfigError. If the process that served it has ended, it
    has printed the reason."""
    try:
        yield
    except (DistError, TimeoutError) as error:
        raise ConfigError(
            f"the rendezvous store no longer answers ({first_line(error)}): the process that serves it, rank 0 or the "
            "launcher, has ended, is suspended or cannot be reached. Hint: read the message of that process."
        ) from error


def ask(action: Callable[[], T], timeout_s: float) -> T:
    """Run an action that asks the store, and limit its time: whatever the time limit of the store is, torch waits
    forever while the process that serves the store is suspended, or its machine is gone. Raises TimeoutError."""
    return call_bounded(action, max(timeout_s, ANSWER_S), "Waiting: the rendezvous store does not answer")


# ---- a failure, which ends all waits ---------------------------------------------------------------------------------


def post_failure(root: Messages, code: int, mistakes: list[str]) -> tuple[int, list[str]]:
    """Tell all others why this process ends. Return the first failure that was posted, of this process or another.

    code: exit code, 1 for a failure, 2 for a refusal, 128 + n after signal n.
    """
    return _checked_failure(root.set_first("failed", [code, mistakes]))


def read_failure(root: Messages) -> tuple[int, list[str]] | None:
    """Return the failure that was posted first, or None. Raises ConfigError if no process of this run posts such."""
    return _checked_failure(root.get("failed")) if root.has("failed") else None


def _checked_failure(posted: Any) -> tuple[int, list[str]]:
    with as_posted("failed"):
        code, mistakes = posted
        if type(code) is int and 0 < code < 256 and mistakes and all(isinstance(each, str) for each in mistakes):
            return code, mistakes
        raise ValueError("not an exit code above 0 with texts")


def refuse(root: Messages, who: str, mistakes: list[str], num_readers: int = 0, timeout_s: float = GRACE_S) -> bool:
    """Tell the others that a member was refused. Return whether any has read it. num_readers: how many to wait for,
    because this process may serve the store."""
    post_failure(root, 2, [f"{who} was refused: {mistake}" for mistake in mistakes])
    return _wait_for_readers(root, num_readers, timeout_s) > 0


def _raise_failure(root: Messages, store: Messages, *, serves: bool) -> None:
    """Raise SharedError if a member has failed. serves: whether this process may serve the store, so that all who have
    arrived must read it first."""
    if failure := read_failure(root):
        root.add("failed_read", 1)
        if serves:
            _wait_for_readers(root, int(store.add("arrivals", 0)), GRACE_S)
        raise SharedError(failure[1], failure[0])


def _wait_for_readers(root: Messages, count: int, timeout_s: float) -> int:
    end = time.monotonic() + timeout_s
    while (num_read := int(root.add("failed_read", 0))) < count and time.monotonic() < end:
        time.sleep(POLL_S)
    return num_read


# ---- waiting for the others ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """Members that are waited for. noun: rank or node. label: formats a number, for example as "rank 3 (node 1, local
    rank 1)". hint: hint for the error after a timeout."""

    size: int
    noun: str
    label: Callable[[int], str]
    hint: str

    def missing(self, arrived: Sequence[Mapping[str, Any]], seconds: float) -> str:
        """Return who is missing after this time. arrived: what the others have posted."""
        numbers = {each["number"] for each in arrived}
        labels = [self.label(number) for number in range(self.size) if number not in numbers]
        missing = f"Missing: {shorten_list(labels, 10) or f'the answer of {self.label(0)}'}"
        if None in numbers:
            met = ", ".join(dict.fromkeys(each["host"] for each in arrived))
            missing = f"Met: {met}. Missing: {count_noun(self.size - len(arrived), f'more {self.noun}')}"
        return f"{len(arrived)} of {self.size} {self.noun}s met within {seconds:.0f} s. {missing}."


@explain_lost_store()
def _decide_for_all(
    root: Messages,
    store: Messages,
    own: Mapping[str, Any],
    decide: Callable[[list[Any]], Any],
    expected: Expected,
    timeout_s: float,
) -> tuple[int, Any]:
    """Post an entry, and return (its position in the order of arrival, number 0's verdict).

    own: the entry, whose `number` may be None. decide: returns the verdict, given the entries so far, or None while
    some are missing; if it raises a ConfigError, all members raise its mistakes.
    """
    decides, arrived, num_arrivals = own["number"] == 0, list[Any](), 0
    deadline = Deadline(timeout_s if decides else timeout_s + GRACE_S)

    def arrive() -> int:
        position = int(store.add("arrivals", 1)) - 1
        store.set(f"arrival/{position}", own)
        return position

    def read_arrived() -> list[Any]:
        nonlocal num_arrivals
        num_arrivals = int(store.add("arrivals", 0))
        for begin in range(len(arrived), num_arrivals, READ_AT_ONCE):
            keys = [f"arrival/{n}" for n in range(begin, min(begin + READ_AT_ONCE, num_arrivals))]
            if not store.has(*keys):  # one is counted, but not yet posted
                break
            arrived.extend(store.get_many(keys))
        return arrived

    def progress(seconds: float) -> str:
        if decides or expected.size <= MAX_READERS:
            return expected.missing(ask(read_arrived, deadline.remaining_s), seconds)
        return f"{expected.label(0)} has not answered after {seconds:.0f} s. Its messages say who is missing."

    def fail_all(mistakes: list[str]) -> None:
        post_failure(root, 2, mistakes)
        _raise_failure(root, store, serves=True)

    def look_for_verdict() -> list[Any] | None:
        if store.has("verdict"):
            return [store.get("verdict")]
        _raise_failure(root, store, serves=decides)
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
        if not deadline.pause(lambda seconds: f"Waiting: {progress(seconds)}", POLL_S):
            late = f"{progress(deadline.elapsed_s)} Hint: {expected.hint}"
            if lost := num_arrivals - len(arrived):  # of each, the small packet that counts it has arrived
                late = f"{progress(deadline.elapsed_s)} What {lost} of them sent has not arrived. Hint: {LARGE}."
            if decides:
                ask(lambda late=late: fail_all([late]), ANSWER_S)
            raise ConfigError(late)
    return position, verdict[0]


# ---- those who have met ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Meeting:
    """Members that have met. root: the store of the run, `store` the part of these members. number: number of this
    member. members: host, pid, machine, ... of each member, by number. noun: rank or node."""

    root: Messages
    store: Messages
    number: int
    members: Sequence[Member]
    noun: str
    timeout_s: float

    @property
    def size(self) -> int:
        return len(self.members)

    def name(self, number: int) -> str:
        return f"{self.noun} {number} ({self.members[number].host})"

    def agree(self, key: str, value: Any, decide: Callable[[list[Any]], Any], timeout_s: float | None = None) -> Any:
        """Return on all members what number 0 decides, given the values of all by number. Values are plain JSON.

        key: name of this agreement, used once. Raises SharedError on all members if decide raises a ConfigError, or if
        a member is missing after timeout_s.
        """

        def decide_if_complete(arrived: list[Any]) -> list[Any] | None:
            with as_posted(key):
                by_number = {each["number"]: each["value"] for each in arrived}
                complete = len(by_number) == self.size
                values = [by_number[number] for number in range(self.size)] if complete else []
            return [decide(values)] if complete else None

        hint = f"read their messages, and check that they are still running. The others wait for them at `{key}`."
        own, store = {"number": self.number, "value": value}, self.store.under(key)
        members = Expected(self.size, self.noun, self.name, hint)
        verdict = _decide_for_all(self.root, store, own, decide_if_complete, members, timeout_s or self.timeout_s)[1]
        with as_posted(key):
            (agreed,) = verdict
        return agreed

    def broadcast(self, key: str, value: Any = None, timeout_s: float | None = None) -> Any:
        """Return the value of number 0 on all members."""
        return self.agree(key, value, lambda values: values[0], timeout_s)

    def require_equal(self, key: str, facts: Mapping[str, Any], timeout_s: float | None = None) -> None:
        """Raise SharedError on all members unless all members pass the same facts."""

        def compare(facts_of_all: list[Any]) -> None:
            if mistakes := differences(facts_of_all, self.noun):
                raise ConfigError(mistakes)

        self.agree(key, facts, compare, timeout_s)

    @explain_lost_store()
    def refuse(self, error: ConfigError) -> None:
        """Make all waits of the other members raise this member's error."""
        num_readers = self.size - 1 if self.number == 0 else 0
        ask(lambda: refuse(self.root, self.name(self.number), list(map(str, error.mistakes)), num_readers), 2 * GRACE_S)

    def fail(self, code: int, reason: str) -> None:
        """Tell the others that this member ends, over a store that may not answer any more."""
        run_bounded(lambda: post_failure(self.root, code, [reason]), FAIL_S)

    def leave(self, timeout_s: float) -> None:
        """Leave. Number 0, which may serve the store, waits up to timeout_s until all others have left."""

        deadline = Deadline(timeout_s)  # of the thread, too: Python's exit aborts while it is in C++ code

        def leave() -> None:
            self.store.add("num_left", 1)
            while self.number == 0 and int(self.store.add("num_left", 0)) < self.size and not deadline.is_over:
                time.sleep(POLL_S)

        run_bounded(leave, timeout_s)


def meet(
    root: Messages,
    own: Member,
    expected: Expected,
    timeout_s: float,
    find_mistakes: Callable[[list[Member]], list[str]] = lambda members: [],
) -> Meeting:
    """Wait until all members have arrived, each number once and with equal facts. Number 0 assigns the free numbers to
    those without one.

    find_mistakes: further checks of the members. Raises the mistakes that number 0 finds on all members.
    """
    noun = expected.noun

    def decide(arrived: list[Any]) -> Any:
        with as_posted("arrival"):
            members = [Member.of(each) for each in arrived]
        mistakes = number_mistakes(members, noun)
        if len(members) < expected.size and not mistakes:
            return None
        free = sorted({*range(expected.size)} - {each.number for each in members})
        numbers = [free.pop(0) if each.number is None and free else each.number for each in members]
        by_number = {number: each for number, each in zip(numbers, members, strict=True) if number is not None}
        placed = [by_number[number] for number in sorted(by_number)]
        mistakes = mistakes or differences([each.equal for each in placed], noun) or find_mistakes(placed)
        if mistakes:
            raise ConfigError(mistakes)
        of_positions = [[position, number] for position, number in enumerate(numbers) if number is not None]
        return [of_positions, [{**vars(each), "equal": {}} for each in placed]]

    store = root.under(f"{noun}s")
    position, verdict = _decide_for_all(root, store, vars(own), decide, expected, timeout_s)
    with as_posted("verdict"):
        of_positions, posted = verdict
        numbers, members = {int(place): int(number) for place, number in of_positions}, [*map(Member.of, posted)]
        if (number := numbers.get(position)) is not None and members[number].nonce != own.nonce:
            raise ValueError("an answer to other members")
    if position not in numbers:
        whose = f"{noun} {own.number}" if own.number is not None else f"one more {noun}"
        raise ConfigError(
            f"this is {whose}, but all {len(members)} {noun}s of the job at this address have met already: "
            f"{hosts(members, pids=True)}. Hint: set another address or port for another job, or set cluster.job_id."
        )
    return Meeting(root, store.among([each.nonce for each in members]), numbers[position], members, noun, timeout_s)
