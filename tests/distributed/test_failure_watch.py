"""The end of a rank is known to all soon: real processes that are killed, stopped, fail, and end well."""

import signal
import threading
import time
from pathlib import Path

import pytest
from helpers.forked_commands import Command, start_code
from torch.distributed import HashStore, TCPStore

from imagenet_ddp.distributed import failure_watch
from imagenet_ddp.distributed.commands import Commands
from imagenet_ddp.distributed.compare_members import Member, this_process
from imagenet_ddp.distributed.meet import Meeting
from imagenet_ddp.distributed.messages import Messages
from imagenet_ddp.distributed.place import Place

RANK = """
number, size, port, then, options = args
vars(failure_watch).update({"BEAT_S": 0.2, "GRACE_S": 1, **options})  # others read a reason within a beat
ten = timedelta(seconds=20)
if not port:
    raw = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False, timeout=ten)
    print("port", raw.port)
    port = raw.port
else:
    raw = TCPStore("127.0.0.1", port, None, False, wait_for_workers=False, timeout=ten)
connect = lambda: Messages(
    PrefixStore("x", TCPStore("127.0.0.1", port, None, False, wait_for_workers=False, timeout=ten)))
met = meet_as(PrefixStore("x", raw), number, size, 20)
line = failure_watch.FailureWatch(met, connect)
print("ready")
exec(then)
"""
SLEEP = "time.sleep(60)"
FAIL = """
time.sleep(0.5)
first = line.fail("ValueError: x\\nof two lines")
print("first" if first else f"follows {line.failed}", file=sys.stderr)
os._exit(1)
"""


def start_ranks(*then: str, port: int = 0, **options: float) -> list[Command]:
    """One rank for each; they are ready when this returns. port: of a launcher's store; 0: rank 0 serves it."""
    first = start_code(RANK, 0, len(then), port, then[0], options)
    port = port or int(first.wait_for_line("port").split()[1])
    members = [first, *(start_code(RANK, n, len(then), port, then[n], options) for n in range(1, len(then)))]
    for member in members:
        member.wait_for_line("ready")
    time.sleep(0.1)  # rank 0 has heard from all
    return members


@pytest.mark.parametrize("victim", [1, 0])
def test_a_rank_that_is_killed_ends_all(victim: int):
    members = start_ranks(SLEEP, SLEEP, SLEEP)
    members[victim].kill()
    members[victim].wait(5)  # as a launcher or a shell does
    for number, member in enumerate(members):
        if number != victim:
            assert member.wait(20) == 1
            assert member.err == (
                f"rank {number} ends because rank {victim} is gone: its process, or its machine, no longer answers\n"
            )


@pytest.mark.parametrize("victim", [1, 0])
def test_a_rank_that_is_silent_for_long_is_gone(victim: int):
    """As the rank of another machine, whose cable is pulled, is: it does not count its beats up."""
    server = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    members = start_ranks(SLEEP, SLEEP, SLEEP, port=server.port, LOST_BEATS=20)
    members[victim].send_signal(signal.SIGSTOP)
    for number in {0, 1, 2} - {victim}:
        assert members[number].wait(20) == 1
        assert f"rank {number} ends because rank {victim} is gone" in members[number].err
    members[victim].kill()


def test_a_store_that_is_silent_for_long_is_gone():
    """As where the machine of rank 0 is: nobody answers, and no connection is closed."""
    members = start_ranks(SLEEP, SLEEP, LOST_BEATS=20)
    members[0].send_signal(signal.SIGSTOP)
    assert members[1].wait(20) == 1
    assert "rank 1 ends because rank 0 is gone" in members[1].err
    members[0].kill()


def test_a_lost_connection_is_blamed_on_the_rank_that_was_killed():
    """A rank whose collective fails before anybody knows why waits for the cause."""
    follows = "time.sleep(0.3); print('first', line.fail('connection closed', follows=True), line.failed); os._exit(1)"
    members = start_ranks(SLEEP, follows, SLEEP, GRACE_S=5)
    members[2].kill()
    members[2].wait(5)
    assert "first False rank 2 is gone" in members[1].wait_for_line("first")
    members[0].kill()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_fails_tells_its_own_error(victim: int):
    members = start_ranks(*(FAIL if number == victim else SLEEP for number in range(3)))
    for number, member in enumerate(members):
        assert member.wait(20) == 1
        if number == victim:
            assert member.err == "first\n"
        else:
            assert member.err == f"rank {number} ends because rank {victim} failed: ValueError: x of two lines\n"


@pytest.mark.parametrize(
    ("victim", "what", "code", "said"),
    [
        (0, "no GPU. Hint: x.", 2, "refused: no GPU. Hint: x."),
        (2, "was stopped by SIGTERM", 143, "was stopped by SIGTERM"),
    ],
)
def test_all_have_the_exit_code_of_the_first(victim: int, what: str, code: int, said: str):
    leave = f"line.fail({what!r}, {code}); os._exit({code})"
    members = start_ranks(*(leave if number == victim else SLEEP for number in range(3)))
    for number, member in enumerate(members):
        assert member.wait(20) == code
        if number != victim:
            assert member.err == f"rank {number} ends because rank {victim} {said}\n"


def test_neither_a_pause_nor_a_clean_end_is_a_death(tmp_path: Path):
    """Stopped, as in a debugger, for less than the time after which a machine is given up. Then they end in any order:
    rank 0 waits for the others, but is not held up by them."""
    go = tmp_path / "go"
    wait = f"import pathlib\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.02)\n"
    members = start_ranks(f"{wait}line.end()", f"{wait}time.sleep(0.5); line.end(); time.sleep(1)")
    for member in (members[1], members[0]):
        member.send_signal(signal.SIGSTOP)
        time.sleep(0.8)
        assert all(each.poll() is None for each in members)
        member.send_signal(signal.SIGCONT)
    go.touch()
    assert [(member.wait(20), member.err) for member in members] == [(0, "")] * 2


def test_no_thread_asks_the_store_after_a_vain_wait_for_the_others(monkeypatch: pytest.MonkeyPatch):
    """Python's exit would abort while the thread is in C++ code, with exit code 134."""
    monkeypatch.setattr(failure_watch, "LEAVE_S", 0.1)
    store, before = Messages(HashStore()), set(threading.enumerate())
    members = [Member(**vars(this_process()), number=number, size=2) for number in range(2)]
    place = Place(world_size=2, local_world_size=2)
    Commands(place, {}, store, 5.0).leave(0.1)
    failure_watch.FailureWatch(Meeting(store, store, place, members, 5.0), lambda: store).end()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "bounded"]
