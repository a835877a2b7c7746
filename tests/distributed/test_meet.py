"""All who take part, at a real store: threads with a connection of their own each, and processes where one must die."""

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from helpers.fake_ranks import FakeRanks, call_all, connect, join_all, join_bounded, meet_as, mistakes
from helpers.forked_commands import start_code
from torch.distributed import HashStore, PrefixStore, TCPStore

from imagenet_ddp.distributed import failure, meet, messages
from imagenet_ddp.distributed.compare_members import Member, this_process
from imagenet_ddp.errors import ConfigError, SharedError
from imagenet_ddp.system import bounded_wait

HOST = socket.gethostname()


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch):
    for module in (failure, meet):
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


@pytest.mark.parametrize(
    ("size", "numbers", "said"),
    [
        (12, [n for n in range(12) if n not in (5, 9)],
         "10 of 12 ranks met within 1 s. Missing: rank 5 (node 1, local rank 1), rank 9 (node 2, local rank 1)."),
        (12, [0, 1, 2, 3, 5, 6, 7], "7 of 12 ranks met within 1 s. Missing: rank 4 (node 1, local rank 0), node 2."),
    ],
)  # fmt: skip
def test_missing_ranks_are_named_in_time_on_all(
    fake_ranks: FakeRanks, monkeypatch: pytest.MonkeyPatch, capfd: Any, size: int, numbers: list[int], said: str
):
    monkeypatch.setattr(bounded_wait, "REPORT_EVERY_S", 0.2)
    fake_ranks.timeout_s = 1.0
    for future in [fake_ranks.join(number, size) for number in numbers]:
        (text,) = mistakes(future)
        assert text.startswith(f"{said} Hint: start the command on the missing machine, too, or read the message th")
    assert said.partition(". ")[2] in capfd.readouterr().err


@pytest.mark.parametrize("is_first", [False, True])
def test_a_rank_of_which_only_small_packets_arrive_is_named(fake_ranks: FakeRanks, is_first: bool):
    """Its entry is counted and never there, whoever arrives first. The others are read all the same."""
    fake_ranks.timeout_s = 1.0
    counted = messages.Messages(next(fake_ranks.stores)).under("ranks")
    if is_first:
        counted.add("arrivals", 1)
    future = fake_ranks.join(0, 2)
    if not is_first:
        while counted.add("arrivals", 0) < 1:
            time.sleep(0.01)
        counted.add("arrivals", 1)
    (text,) = mistakes(future)
    said = r"1 of 2 ranks met within \d s\. Missing: rank 1\. What 1 of them sent has not arrived\. Hint: large packets"
    assert re.match(said, text), text


def test_many_need_few_round_trips(monkeypatch: pytest.MonkeyPatch):
    """A store that thousands of ranks poll answers slowly: number 0 reads many entries at once, the others none."""
    calls: list[str] = []

    class Counted:
        def __init__(self, prefix: str, root: Any):
            self.store = PrefixStore(prefix, root)

        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(self.store, name)

    monkeypatch.setattr(meet, "GRACE_S", 0.0)
    root = HashStore()
    with pytest.raises(
        ConfigError, match=r"^rank 0 \(node 0, local rank 0\) has not answered after 0 s\. Its messages"
    ):
        meet_as(root, 1, 1000, 0.1)
    ranks = PrefixStore("ranks", root)
    for number in range(2, 1000):
        own = vars(Member(**vars(this_process()), number=number, size=1000, local_rank=number % 4))
        ranks.set(f"arrival/{ranks.add('arrivals', 1) - 1}", json.dumps(own))
    monkeypatch.setattr(messages, "PrefixStore", Counted)
    assert len(meet_as(root, 0, 1000, 20).members) == 1000
    assert len(calls) < 20


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"number": 0, "size": 4}, "rank 0 must be unique, but is claimed by HOST (process PID). Hint: "),
        ({"number": 1, "size": 2},
         "the number of ranks must be the same in all commands, got 2 on HOST; 4 on HOST. Hint:"),
        ({"number": 1, "size": 4, "job_id": "b"},
         "two jobs use the same address: cluster.job_id is a and b (HOST). Hint:"),
    ],
)  # fmt: skip
def test_numbers_that_contradict_each_other_are_told_to_all(fake_ranks: FakeRanks, second: dict[str, Any], said: str):
    """At once, long before the end of the wait."""
    fake_ranks.timeout_s = 60
    for future in [fake_ranks.join(0, 4, job_id="a"), fake_ranks.join(**{"job_id": "a", **second})]:
        text = mistakes(future)[0].replace(HOST, "HOST").replace(str(os.getpid()), "PID")
        assert text.startswith(said)


def test_a_late_comer_is_refused_alone(fake_ranks: FakeRanks):
    members = join_all(fake_ranks, 2)
    assert "this is rank 1, but all 2 ranks of the job" in mistakes(fake_ranks.join(1, 2), ConfigError)[0]
    told = {"path": "/ä b", "lr": 0.1, "none": None, "list": [1, "x"]}
    words = call_all(fake_ranks, members, lambda m: m.broadcast("job", told if m.number == 0 else None))
    assert [future.result(5) for future in words] == [told, told]


def test_differing_facts_are_told_to_all(fake_ranks: FakeRanks):
    futures = [fake_ranks.join(number, 3, equal={"seed": number // 2, "torch": "2.15"}) for number in range(3)]
    for future in futures:
        assert mistakes(future) == [
            "the ranks disagree on seed: 0 on ranks 0, 1; 1 on rank 2. Hint: use the same options, code, images and "
            "package versions everywhere."
        ]


def test_another_version_is_told_to_all(fake_ranks: FakeRanks):
    """Although its members post other keys."""
    store = PrefixStore("ranks", next(fake_ranks.stores))
    store.add("arrivals", 1)
    who = {**vars(this_process()), "number": 1, "local_rank": 1, "size": 2}
    store.set("arrival/0", json.dumps({**who, "noun": "rank", "equal": {"the code of imagenet_ddp": "old"}}))
    assert mistakes(fake_ranks.join(0, 2, equal={"the code of imagenet_ddp": "new"})) == [
        "the ranks disagree on the code of imagenet_ddp: new on rank 0; old on rank 1. "
        "Hint: install the same version of this project everywhere."
    ]


def test_many_ranks_meet_at_one_store(monkeypatch: pytest.MonkeyPatch):
    """And agree once more, each with a connection of its own: more than read the entries of all, in several reads."""
    size, server = 40, connect(1)[0]
    monkeypatch.setattr(meet, "MAX_READERS", 16)
    monkeypatch.setattr(meet, "READ_AT_ONCE", 12)

    def rank(number: int) -> int:
        store = TCPStore("127.0.0.1", server.port, None, False, timeout=timedelta(seconds=60)) if number else server
        return meet_as(store, number, size, 120).agree("sum", number, sum)

    with ThreadPoolExecutor(size) as pool:
        assert set(pool.map(rank, range(size))) == {size * (size - 1) // 2}


# ---- what they say to each other -------------------------------------------------------------------------------------


def test_number_0_decides_for_all(fake_ranks: FakeRanks):
    members = join_all(fake_ranks, 3)
    for future in call_all(fake_ranks, members, lambda m: m.agree("sizes", 8 - m.number, min)):
        assert future.result(5) == 6
    for future in call_all(fake_ranks, members, lambda m: m.require_equal("same", {"the classes": 3})):
        future.result(5)
    for future in call_all(fake_ranks, members, lambda m: m.require_equal("data", {"the classes": m.number == 1})):
        assert mistakes(future) == [
            "the ranks disagree on the classes: false on ranks 0, 2; true on rank 1. Hint: use the same options, "
            "code, images and package versions everywhere."
        ]


def test_a_refusal_ends_all_waits(fake_ranks: FakeRanks, monkeypatch: pytest.MonkeyPatch):
    """Number 0's own mistake ends all who wait for its word, and it knows that they have heard it."""
    first, *others = join_all(fake_ranks, 3)
    waiting = call_all(fake_ranks, others, lambda m: m.broadcast("job"))
    monkeypatch.setattr(failure, "GRACE_S", 10.0)  # what it would wait for one that does not read
    begin = time.monotonic()
    first.refuse(ConfigError(["a. Hint: b.", "c. Hint: d."]))
    assert time.monotonic() - begin < 8
    for future in waiting:
        assert mistakes(future) == [f"rank 0 ({HOST}) was refused: {each}" for each in ("a. Hint: b.", "c. Hint: d.")]


def test_every_wait_is_bounded_and_names_who(fake_ranks: FakeRanks):
    first, second = join_all(fake_ranks, 2)
    for member, missing, kind in ((second, 0, ConfigError), (first, 1, SharedError)):
        future = fake_ranks.pool.submit(member.require_equal, f"of {member.number}", {}, 0.3)
        (text,) = mistakes(future, kind)
        assert f"Missing: rank {missing} ({HOST}). Hint: read their messages" in text


# ---- the end of the one that serves ----------------------------------------------------------------------------------

CHIEF = """
server = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
print(server.port)
meet_as(PrefixStore("x", server), 0, 3, 60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_chief_that_no_longer_answers_is_said(monkeypatch: pytest.MonkeyPatch, capfd: Any, number: signal.Signals):
    """While others still come. torch waits for a suspended process without limit."""
    monkeypatch.setattr(bounded_wait, "REPORT_EVERY_S", 0.2)
    monkeypatch.setattr(failure, "ANSWER_S", 1.0)
    chief = start_code(CHIEF)
    port = int(chief.wait_for_line(""))
    raw = TCPStore("127.0.0.1", port, None, False, wait_for_workers=False, timeout=timedelta(seconds=10))
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(meet_as, PrefixStore("x", raw), 1, 3, 1.5 if number == signal.SIGSTOP else 60)
        time.sleep(0.3)
        chief.send_signal(number)
        (text,) = mistakes(future, ConfigError)
    assert text.startswith("the rendezvous store no longer answers (")
    assert "Hint: read the message of that process." in text
    assert number == signal.SIGKILL or "Waiting: the rendezvous store does not answer, " in capfd.readouterr().err
    chief.kill()
    join_bounded()
