"""Run ranks as threads, each with its own connection to one real store."""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from helpers.probes.run_code import meet_as
from torch.distributed import PrefixStore, TCPStore

from imagenet_ddp.distributed.meet import Meeting
from imagenet_ddp.errors import ConfigError, SharedError

NUMBERS = itertools.count()


def connect(size: int) -> list[TCPStore]:
    """Return the server and one connection for each of the other ranks.

    Tests share these connections, because a new one may wait seconds for a name server.
    """
    ten = timedelta(seconds=10)
    server = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False, timeout=ten)
    return [server, *(TCPStore("127.0.0.1", server.port, None, False, timeout=ten) for _ in range(size - 1))]


class FakeRanks:
    """Run each rank that meets the others in a thread. The futures contain its Meeting, or the error."""

    def __init__(self, connections: list[TCPStore], timeout_s: float = 20) -> None:
        self.pool, self.timeout_s = ThreadPoolExecutor(32), timeout_s
        prefix = str(next(NUMBERS))
        self.stores = iter([PrefixStore(prefix, each) for each in connections])

    def __enter__(self) -> "FakeRanks":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()

    def join(self, number: int, size: int, **more: Any) -> Future[Meeting]:
        return self.pool.submit(meet_as, next(self.stores), number, size, self.timeout_s, **more)


def mistakes(future: Future[Any], kind: type = SharedError) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        future.result(15)
    assert type(caught.value) is kind
    return list(map(str, caught.value.mistakes))


def join_all(fake_ranks: FakeRanks, size: int) -> list[Meeting]:
    return [future.result(15) for future in [fake_ranks.join(number, size) for number in range(size)]]


def call_all(fake_ranks: FakeRanks, members: list[Meeting], act: Callable[[Meeting], Any]) -> list[Future[Any]]:
    return [fake_ranks.pool.submit(act, member) for member in members]


def join_bounded() -> None:
    """Wait for the calls that a time limit has left behind: Python's exit would abort while they are in C++ code."""
    for thread in threading.enumerate():
        if thread.name == "bounded":
            thread.join(60)
