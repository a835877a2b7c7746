"""A death is known to all at once: real processes that are killed, stopped, fail, and end well."""

import signal
import socket
import time

import pytest
from helpers.forked_commands import Command, start_code

from imagenet_ddp.distributed.rendezvous import failure_detector
from imagenet_ddp.distributed.rendezvous.sockets import connect, listen
from imagenet_ddp.errors import ConfigError

RANK = """
number, size, port, then, grace_s = args
failure_detector.GRACE_S = grace_s
who = lambda n: f"rank {n}"
if number == 0:
    raw = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))
    print("port", raw.port)
else:
    raw = TCPStore("127.0.0.1", port, None, False, wait_for_workers=False, timeout=timedelta(seconds=20))
roster = gather_ranks.Roster(size, "rank", who, "")
met = gather_ranks.gather_ranks(PrefixStore("x", raw), roster, number, {}, 20, leader=number == 0)
line = failure_detector.FailureDetector(met, ["127.0.0.1"], who, failure_detector.end_process(who(number)))
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


def start_ranks(*then: str, grace_s: float = 0.2) -> list[Command]:
    """One rank for each; they are ready when this returns."""
    first = start_code(RANK, 0, len(then), 0, then[0], grace_s)
    port = int(first.wait_for_line("port").split()[1])
    members = [first, *(start_code(RANK, n, len(then), port, then[n], grace_s) for n in range(1, len(then)))]
    for member in members:
        member.wait_for_line("ready")
    time.sleep(0.1)  # rank 0 has heard from all
    return members


@pytest.mark.parametrize("victim", [2, 1, 0])
def test_a_rank_that_is_killed_ends_all(victim: int):
    """Within 5 s with the grace of a real run, naming it; exit code 1; and nobody is left."""
    members = start_ranks(SLEEP, SLEEP, SLEEP, grace_s=failure_detector.GRACE_S if victim == 2 else 0.2)
    begin = time.monotonic()
    members[victim].kill()
    for number, member in enumerate(members):
        if number != victim:
            assert member.wait(20) == 1
            assert member.err == (
                f"rank {number} ends because rank {victim} is gone: its process, or its machine, no longer answers\n"
            )
    assert time.monotonic() - begin < 5
    assert not any(member.poll() is None for member in members if member is not members[victim])


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_fails_tells_its_own_error(victim: int):
    members = start_ranks(*(FAIL if number == victim else SLEEP for number in range(3)))
    for number, member in enumerate(members):
        assert member.wait(20) == 1
        if number == victim:
            assert member.err == "first\n"
        else:
            assert member.err == f"rank {number} ends because rank {victim} failed: ValueError: x of two lines\n"


def test_of_two_failures_the_first_is_the_one():
    """The second follows from it (a broken connection), and says so."""
    members = start_ranks(SLEEP, FAIL, "time.sleep(1.2)" + FAIL, grace_s=10)
    assert members[1].wait(20) == 1
    assert members[2].wait(20) == 1
    assert members[2].err == "follows rank 1 failed: ValueError: x of two lines\n"
    members[0].kill()


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize(
    ("what", "code", "said"),
    [("no GPU. Hint: x.", 2, "refused: no GPU. Hint: x."), ("was stopped by SIGTERM", 143, "was stopped by SIGTERM")],
)
def test_all_have_the_exit_code_of_the_first(victim: int, what: str, code: int, said: str):
    leave = f"line.fail({what!r}, {code}); os._exit({code})"
    members = start_ranks(*(leave if number == victim else SLEEP for number in range(3)))
    for number, member in enumerate(members):
        assert member.wait(20) == code
        if number != victim:
            assert member.err == f"rank {number} ends because rank {victim} {said}\n"


def test_a_clean_end_is_no_death():
    """In any order, and rank 0 waits for the others, but is not held up by them."""
    members = start_ranks("line.end()", "line.end()", "time.sleep(1); line.end(); time.sleep(1)")
    assert [member.wait(20) for member in members] == [0, 0, 0]
    assert [member.err for member in members] == ["", "", ""]


def test_the_end_may_be_told_twice_and_takes_no_time():
    timed = "begin = time.monotonic(); line.end(); line.end(); print('took', time.monotonic() - begin)"
    members = start_ranks(timed, "line.end(); line.end()")
    assert [member.wait(20) for member in members] == [0, 0]
    assert float(members[0].wait_for_line("took").split()[1]) < 5


def test_a_death_at_the_end_of_others_is_still_one():
    """Rank 0 is done and waits for rank 1, which is killed."""
    members = start_ranks("line.end(); time.sleep(60)", SLEEP)
    time.sleep(0.3)
    members[1].kill()
    assert members[0].wait(20) == 1
    assert "rank 1 is gone" in members[0].err


def test_rank_0_does_not_wait_for_ever():
    """Who is still at work is told that this is no death."""
    members = start_ranks("failure_detector.LEAVE_S = 0.3; line.end()", SLEEP)
    assert members[0].wait(20) == 0
    time.sleep(0.5)
    assert members[1].poll() is None and not members[1].err
    members[1].kill()


def test_a_process_that_is_stopped_is_not_dead():
    """Swapped out, or in a debugger: longer than any heartbeat would wait, but the kernel answers for it."""
    members = start_ranks(SLEEP, SLEEP, SLEEP)
    for member in (members[1], members[0]):
        member.send_signal(signal.SIGSTOP)
        time.sleep(1)
        assert all(each.poll() is None for each in members)
        member.send_signal(signal.SIGCONT)
    time.sleep(0.3)
    assert all(each.poll() is None and not each.err for each in members)
    for member in members:
        member.kill()


def test_what_rank_0_cannot_read_harms_nobody():
    """A port scanner, and half a line."""
    code = "print('detector', line._listener.getsockname()[1]); " + SLEEP
    members = start_ranks(code, SLEEP)
    port = int(members[0].wait_for_line("detector").split()[1])
    for content in (b"GET / HTTP/1.0\r\n\r\n", b"leave\n", b"failed 1 x\n", b"\xff\xfe", b"7"):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(content)
    time.sleep(0.5)
    assert all(member.poll() is None and not member.err for member in members)
    members[1].kill()
    assert members[0].wait(20) == 1


def test_a_death_is_told_once():
    told = "line._on_failure = lambda code, what: print('died', code, what)\ntime.sleep(60)"
    members = start_ranks(told, SLEEP, SLEEP)
    members[1].kill()
    members[2].kill()
    members[0].wait_for_line("died 1 rank ")
    time.sleep(0.3)
    assert members[0].out.count("died") == 1
    members[0].kill()


def test_connect_takes_the_first_that_answers():
    with listen() as listener:
        port = listener.getsockname()[1]
        connect(["127.0.0.2", "127.0.0.1"], port, 4).close()
        connect(["::1", "127.0.0.1"] if socket.has_ipv6 else ["127.0.0.1"], port, 4).close()
    begin = time.monotonic()
    with pytest.raises(
        ConfigError, match=r"not at another port \(127\.0\.0\.1:\d+: Connection refused\)\. Hint: allow all"
    ):
        connect(["127.0.0.1"], port, 4)
    assert time.monotonic() - begin < 2


def test_kept_alive_by_the_kernel():
    with listen() as listener, connect(["127.0.0.1"], listener.getsockname()[1], 4) as connection:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        idle_s, interval_s, count = (connection.getsockopt(socket.IPPROTO_TCP, option) for option in options)
        assert idle_s + interval_s * count <= 8
