"""Ranks as threads over a real store: whatever their speeds, and whoever is asked, all stop at the same position."""

import os
import random
import signal
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from torch.distributed import TCPStore

from imagenet_ddp.callbacks import stop_agreement
from imagenet_ddp.callbacks.stop_agreement import StopAgreement
from imagenet_ddp.runs.signals import Signals


def positions(num_epochs: int, num_steps: int, num_val_batches: int) -> list[tuple[int, bool]]:
    """(position, leave) as the callbacks ask them, for one rank."""
    asked = []
    for epoch in range(num_epochs):
        for step in range(1, num_steps + 1):
            done = epoch * num_steps + step
            if step < num_steps:
                asked.append((3 * done, True))
        last = 3 * (epoch + 1) * num_steps
        asked += [(last + 1, False)] * num_val_batches
        asked += [(last + 1, True), (last + 2, True)]
    return asked


@pytest.mark.parametrize("seed", range(12))
def test_all_ranks_stop_at_the_same_position(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_agreement, "POLL_S", 0.005)
    monkeypatch.setattr(stop_agreement, "ANSWER_S", 60.0)  # a rank that gives up would end this process
    chance = random.Random(seed)
    world_size = chance.choice([2, 3, 4])
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def client() -> TCPStore:
        return TCPStore(
            "127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=60), wait_for_workers=False
        )

    signals = [Signals() for _ in range(world_size)]
    agreements = [StopAgreement(signals[rank], rank, world_size, client) for rank in range(world_size)]
    # a step ends when all ranks have come to it (the all-reduce), but no rank waits for another in validation
    together = threading.Barrier(world_size)
    stopped: dict[int, int] = {}
    asked, when = chance.randrange(world_size), chance.randrange(5, 60)
    # one rank may have more validation batches than another
    # of the shorter runs some end before the threads have agreed
    num_epochs = 6 if seed % 6 == 5 else 600  # on a busy machine, agreeing may take many of these short steps
    plans = [positions(num_epochs, 5, 1 + chance.randrange(3)) for _ in range(world_size)]
    pauses = [chance.random() * 0.004 for _ in range(world_size)]

    def train(rank: int) -> None:
        for number, (position, leave) in enumerate(plans[rank]):
            if position % 3 != 1:
                together.wait(60)
            time.sleep(pauses[rank])
            if rank == asked and number == when:
                signals[rank].received = signal.SIGTERM
            if agreements[rank].must_stop(position, leave=leave):
                # without breaking the barrier: a rank that it has let go but not yet woken would take that for its own
                stopped[rank] = position
                return

    threads = [threading.Thread(target=train, args=(rank,), daemon=True) for rank in range(world_size)]
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # the broken barrier of ranks that should have stopped
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    for agreement in agreements:
        agreement.end()
    if stopped or num_epochs > 6:
        assert len(stopped) == world_size, stopped
        assert len(set(stopped.values())) == 1, stopped
        assert all(agreement.signal_number == signal.SIGTERM for agreement in agreements)


def test_a_slow_decision_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that has agreed to stop at a position does not pass it, however slow the store is."""
    monkeypatch.setattr(stop_agreement, "POLL_S", 0.005)
    monkeypatch.setattr(stop_agreement, "ANSWER_S", 0.1)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    class Slow(TCPStore):
        def set(self, key: str, value: str) -> None:
            if key.endswith("decision"):
                time.sleep(0.5)
            super().set(key, value)

    signals = Signals()
    agreement = StopAgreement(
        signals, 0, 1, lambda: Slow("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    )
    assert not agreement.must_stop(3)
    signals.received = signal.SIGTERM
    end = time.monotonic() + 10
    while agreement._proposed is None and time.monotonic() < end:
        time.sleep(0.01)
    assert agreement.must_stop(9)
    agreement.end()


def test_a_later_proposal_is_not_taken_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that waits at a position, and wakes only when the next position is proposed, does not stop before that."""
    monkeypatch.setattr(stop_agreement, "POLL_S", 0.005)
    monkeypatch.setattr(stop_agreement, "ANSWER_S", 60.0)  # a rank that gives up would end this process
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def client() -> TCPStore:
        return TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)

    class SlowToWake(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            found = super().wait(timeout)
            self.release()
            client().wait(["stop/1/rank0"], timedelta(seconds=10))
            self.acquire()
            return found

    def answer() -> None:
        other = client()
        for attempt, word in enumerate(("no", "yes")):
            proposed.append(int(other.get(f"stop/{attempt}/position")))
            other.set(f"stop/{attempt}/rank1", word)

    proposed: list[int] = []
    signals = Signals()
    own = SimpleNamespace(Condition=SlowToWake, Thread=threading.Thread)  # threads have conditions, too
    monkeypatch.setattr(stop_agreement, "threading", own)
    agreement = StopAgreement(signals, 0, 2, client)
    assert not agreement.must_stop(3)
    signals.received = signal.SIGTERM
    client().wait(["stop/0/rank0"], timedelta(seconds=10))
    assert not agreement.must_stop(6)  # rank 0 stops at 7 or later, rank 1 cannot
    helper = threading.Thread(target=answer, daemon=True)
    threading.Timer(0.3, helper.start).start()  # by then rank 0 waits
    assert [agreement.must_stop(position) for position in (9, 12)] == [False, True]
    assert proposed == [7, 10]
    agreement.end()


def test_one_process_stops_at_once() -> None:
    signals = Signals()
    agreement = StopAgreement(signals, 0, 1, None)
    assert not agreement.must_stop(3)
    signals.received = signal.SIGINT
    assert agreement.must_stop(6)
    assert agreement.signal_number == signal.SIGINT


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_rank_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is gone: the others sit in a collective that never ends, so they leave, without saving."""
    monkeypatch.setattr(stop_agreement, "POLL_S", 0.005)
    monkeypatch.setattr(stop_agreement, "ANSWER_S", 0.2)
    left: list[int] = []

    def leave(code: int) -> None:
        left.append(code)
        raise SystemExit

    monkeypatch.setattr(os, "_exit", leave)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    signals = Signals()
    signals.received = signal.SIGTERM
    agreement = StopAgreement(
        signals, 0, 2, lambda: TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    )
    end = time.monotonic() + 10
    while not left and time.monotonic() < end:
        time.sleep(0.01)
    assert left == [128 + signal.SIGTERM]
    agreement.end()
