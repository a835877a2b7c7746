"""All who take part, at a real store: threads with a connection of their own each, and processes where one must die."""

import json
import os
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from helpers.fake_ranks import FACTS, FakeRanks, call_all, connect, join_all, mistakes, roster
from helpers.forked_commands import start_code
from torch.distributed import PrefixStore, TCPStore

from imagenet_ddp.distributed import meet as module
from imagenet_ddp.distributed.meet import SharedError, meet
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system import bounded_wait

HOST = socket.gethostname()


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(module, "GRACE_S", 1.0)


@pytest.fixture(scope="module")
def connections() -> list[TCPStore]:
    return connect(24)


@pytest.fixture
def fake_ranks(connections: list[TCPStore]) -> Iterator[FakeRanks]:
    with FakeRanks(connections) as fake_ranks:
        yield fake_ranks


# ---- who is there ----------------------------------------------------------------------------------------------------


def test_numbers_are_assigned(fake_ranks: FakeRanks):
    """The one that serves is node 0, whatever the order; given numbers are kept."""
    others = [fake_ranks.join(number, 4, leader=False, noun="node") for number in (None, 2, None)]
    time.sleep(0.2)
    leader = fake_ranks.join(None, 4, leader=True, noun="node")
    assert leader.result(15).number == 0
    numbers = [other.result(15).number for other in others]
    assert numbers[1] == 2
    assert sorted(numbers) == [1, 2, 3]


def test_missing_ranks_are_named_in_time_on_all(fake_ranks: FakeRanks, monkeypatch: pytest.MonkeyPatch, capfd: Any):
    monkeypatch.setattr(bounded_wait, "REPORT_EVERY_S", 0.2)
    fake_ranks.timeout_s = 1.0
    futures = [fake_ranks.join(number, 12) for number in range(12) if number not in (5, 9)]
    for future in futures:
        (text,) = mistakes(future)
        assert text.startswith("10 of 12 ranks joined after ") and text.endswith(
            "Missing: rank 5 (node 1, local rank 1), rank 9 (node 2, local rank 1). Hint: start the command there too."
        )
    said = capfd.readouterr().err
    assert " s. Missing: rank 5 (node 1, local rank 1), rank 9" in said


def test_a_number_given_twice_is_told_to_all(fake_ranks: FakeRanks):
    """At once, long before the end of the wait."""
    fake_ranks.timeout_s = 60
    for future in [fake_ranks.join(number, 4) for number in (0, 1, 1)]:
        (text,) = mistakes(future)
        assert text.startswith(f"rank 1 must be unique, but is claimed by {HOST} (process {os.getpid()}). Hint: set")


@pytest.mark.parametrize(
    ("size", "job_id", "said"),
    [
        (2, "a", f"the number of ranks must be the same in all commands, got 2 on {HOST}; 4 on {HOST}. Hint:"),
        (4, "b", f"two jobs use the same address: cluster.job_id is a and b ({HOST}). Hint:"),
    ],
)
def test_another_job_is_told_to_all(fake_ranks: FakeRanks, size: int, job_id: str, said: str):
    for future in [fake_ranks.join(0, 4, job_id="a"), fake_ranks.join(1, size, job_id=job_id)]:
        assert mistakes(future)[0].startswith(said)


def test_one_too_many(fake_ranks: FakeRanks):
    others = [fake_ranks.join(None, 2, leader=False, noun="node") for _ in range(2)]
    time.sleep(0.2)
    assert fake_ranks.join(None, 2, leader=True, noun="node").result(15).number == 0
    found = [future.exception(15) for future in others]
    assert sorted(error is None for error in found) == [False, True]
    (error,) = filter(None, found)
    assert str(error).startswith("this is one more node, but all 2 nodes of the job at this address have joined")


def test_a_late_comer_is_refused_alone(fake_ranks: FakeRanks):
    members = join_all(fake_ranks, 2)
    for number, who in ((1, "rank 1"), (None, "one more rank")):
        (text,) = mistakes(fake_ranks.join(number, 2, leader=False), ConfigError)
        assert text.startswith(f"this is {who}, but all 2 ranks of the job at this address have joined already: ")
    told = {"path": "/ä b", "lr": 0.1, "none": None, "list": [1, "x"]}
    words = call_all(fake_ranks, members, lambda m: m.broadcast("job", told if m.number == 0 else None))
    assert [future.result(5) for future in words] == [told, told]


def test_differing_facts_are_told_to_all(fake_ranks: FakeRanks):
    futures = [fake_ranks.join(number, 3, {"seed": number // 2, "torch": "2.15"}) for number in range(3)]
    for future in futures:
        assert mistakes(future) == [
            "the ranks disagree on seed: 0 on ranks 0, 1; 1 on rank 2. Hint: use the same options, images and package "
            "versions everywhere."
        ]


def test_another_version_is_told_to_all(fake_ranks: FakeRanks):
    """Although its members post other keys."""
    store = PrefixStore("ranks", next(fake_ranks.stores))
    store.add("arrivals", 1)
    who = {"host": "b", "pid": 1, "machine": "b", "pids": "b", "number": 1, "size": 2}
    store.set("arrival/0", json.dumps({**who, "noun": "rank", "equal": {"the code of imagenet_ddp": "old"}}))
    assert mistakes(fake_ranks.join(0, 2, {"the code of imagenet_ddp": "new"})) == [
        "the ranks disagree on the code of imagenet_ddp: new on rank 0; old on rank 1. "
        "Hint: install the same version of this project everywhere."
    ]


# ---- what they say to each other -------------------------------------------------------------------------------------


def test_refuse(fake_ranks: FakeRanks, monkeypatch: pytest.MonkeyPatch):
    """Number 0's own mistake ends all who wait for its word, and it knows that they have heard it."""
    first, *others = join_all(fake_ranks, 3)
    waiting = call_all(fake_ranks, others, lambda m: m.broadcast("job", None))
    monkeypatch.setattr(module, "GRACE_S", 10.0)  # what it would wait for one that does not read
    begin = time.monotonic()
    first.abort(ConfigError(["a. Hint: b.", "c. Hint: d."]))
    assert time.monotonic() - begin < 8
    for future in waiting:
        assert mistakes(future) == [f"rank 0 ({HOST}) refused: a. Hint: b.", f"rank 0 ({HOST}) refused: c. Hint: d."]


def test_compare(fake_ranks: FakeRanks):
    members = join_all(fake_ranks, 3)
    for future in call_all(fake_ranks, members, lambda m: m.check_equal("same", {"the classes": 3})):
        future.result(5)
    for future in call_all(fake_ranks, members, lambda m: m.check_equal("data", {"the classes": m.number == 1})):
        assert mistakes(future) == [
            "the ranks disagree on the classes: false on ranks 0, 2; true on rank 1. Hint: use the same options, "
            "images and package versions everywhere."
        ]


def test_every_wait_is_bounded_and_names_who(fake_ranks: FakeRanks):
    first, second = join_all(fake_ranks, 2)
    for act, kind in (
        (lambda: second.broadcast("a", None, 0.3), ConfigError),
        (lambda: second.check_equal("c", {}, 0.3), ConfigError),
        (lambda: first.check_equal("d", {}, 0.3), SharedError),
    ):
        (text,) = mistakes(fake_ranks.pool.submit(act), kind)
        assert re.match(r"timed out after \d+ s waiting for rank ", text)


# ---- the end of the one that serves ----------------------------------------------------------------------------------

CHIEF = """
server = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
print(server.port)
expected = meet.Roster(3, "rank", str, "")
meet.meet(PrefixStore("x", server), "ranks", expected, 0, 60, leader=True, equal={"seed": 0})
"""


def test_a_chief_that_dies_is_said():
    """While others still come."""
    leader = start_code(CHIEF)
    port = int(leader.wait_for_line(""))
    raw = TCPStore("127.0.0.1", port, None, False, wait_for_workers=False, timeout=timedelta(seconds=10))
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(meet, PrefixStore("x", raw), "ranks", roster(3), 1, 60, leader=False, equal=FACTS)
        time.sleep(0.3)
        leader.kill()
        (text,) = mistakes(future, ConfigError)
    assert text.startswith("the rendezvous store no longer answers (")
    assert "Hint: read the message of that process." in text
