"""Post the failure of one process of a run, which ends all waits of the others, and ask a store that may not answer.

Keys: failed, failed_read.
"""

import contextlib
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from torch.distributed import DistError  # pyright: ignore[reportPrivateImportUsage]

from imagenet_ddp.distributed.messages import Messages, as_posted
from imagenet_ddp.errors import ConfigError, SharedError
from imagenet_ddp.system.bounded_wait import call_bounded
from imagenet_ddp.system.say_once import say_once
from imagenet_ddp.system.text import first_line

POLL_S = 0.05
GRACE_S = 5.0  # the verdict may arrive this long after number 0's own wait has ended
ANSWER_S = 10.0  # shortest time limit for an answer of the store, more than GRACE_S
LARGE = (
    "large packets are lost on the way, so set a smaller MTU for this network on every node (such as `ip link set dev "
    "INTERFACE mtu 1400`), or run `sysctl net.ipv4.tcp_mtu_probing=1` there, or let ICMP through the firewalls"
)

T = TypeVar("T")


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
    return call_bounded(action, max(timeout_s, ANSWER_S), "Waiting: the rendezvous store does not answer", say_once)


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
    """Tell the others that one of them was refused. Return whether any has read it. num_readers: how many to wait for,
    because this process may serve the store."""
    post_failure(root, 2, [f"{who} was refused: {mistake}" for mistake in mistakes])
    return _wait_for_readers(root, num_readers, timeout_s) > 0


def raise_failure(root: Messages, arrivals: Messages | None = None) -> None:
    """Raise SharedError if another process has failed. arrivals: where those are counted who must read it before this
    process ends, because it may serve the store."""
    if failure := read_failure(root):
        root.add("failed_read", 1)
        if arrivals is not None:
            _wait_for_readers(root, arrivals.add("arrivals", 0), GRACE_S)
        raise SharedError(failure[1], failure[0])


def _wait_for_readers(root: Messages, count: int, timeout_s: float) -> int:
    end = time.monotonic() + timeout_s
    while (num_read := root.add("failed_read", 0)) < count and time.monotonic() < end:
        time.sleep(POLL_S)
    return num_read
