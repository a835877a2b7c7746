"""The store all ranks meet at, and what is said where they do not."""

import socket
import threading
import time
from dataclasses import replace

import pytest

from imagenet_ddp.distributed.place import Place
from imagenet_ddp.distributed.store import connect, exchange, meet
from imagenet_ddp.schema import ConfigError


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_rank_0_serves_and_its_word_reaches_the_others() -> None:
    first = Place(world_size=2, local_world_size=2, address="127.0.0.1", port=free_port(), store_is_served=False)
    second = replace(first, rank=1, local_rank=1)
    heard: list[str] = []

    def listen() -> None:
        heard.append(exchange(connect(second, 10), second, "folder", None, 10))

    listener = threading.Thread(target=listen)
    listener.start()
    store = connect(first, 10)
    connect(first, 10)  # a second connection of rank 0 does not try to serve the port again
    exchange(store, first, "folder", "runs/x", 10)
    listener.join(15)
    assert heard == ["runs/x"]


def test_nobody_there_is_said_within_the_time_given() -> None:
    place = Place(1, 1, 0, 2, 2, 1, "127.0.0.1", free_port(), True, "torchrun")
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"rank 1 of 2 expects to meet the others at 127\.0\.0\.1:\d+") as caught:
        connect(place, 1)
    assert time.monotonic() - began < 20
    assert "HINT:" in str(caught.value)


def test_a_silent_rank_0_is_named() -> None:
    first = Place(world_size=2, local_world_size=2, address="127.0.0.1", port=free_port(), store_is_served=False)
    connect(first, 5)
    second = replace(first, rank=1, local_rank=1)
    with pytest.raises(ConfigError, match=r"waited 0\.5 s for rank 0's word on folder"):
        exchange(connect(second, 5), second, "folder", None, 0.5)


def test_missing_ranks_are_named_in_time() -> None:
    first = Place(world_size=3, local_world_size=3, address="127.0.0.1", port=free_port(), store_is_served=False)
    store = connect(first, 5)
    second = replace(first, rank=1, local_rank=1)
    with pytest.raises(ConfigError, match=r"1 of 3 ranks joined after .* s\. Missing: rank 0, rank 2\. HINT:"):
        meet(connect(second, 5), second, 0.3)
    with pytest.raises(ConfigError, match=r"2 of 3 ranks joined after .* s\. Missing: rank 2\. HINT:"):
        meet(store, first, 0.3)


def test_a_rank_given_twice_is_named() -> None:
    first = Place(world_size=1, address="127.0.0.1", port=free_port(), store_is_served=False)
    meet(connect(first, 5), first, 1)
    with pytest.raises(ConfigError, match="rank 0 is expected to be given once"):
        meet(connect(first, 5), first, 1)
