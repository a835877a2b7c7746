"""Commands that meet, are refused, and send each other a file: threads over real stores on the loopback."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL, clean_environ
from helpers import forked_commands
from helpers.fake_ranks import FakeRanks, call_all, connect, join_all, meet_as, mistakes
from helpers.ports import free_port, program

from imagenet_ddp.cli.check_launch import find_place
from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.config.schema.distributed import ClusterConfig
from imagenet_ddp.config.schema.trainer import TrainerConfig
from imagenet_ddp.distributed import compare_members, find_store, meet_commands, shared_file, store, store_file
from imagenet_ddp.distributed.meet import Meeting
from imagenet_ddp.distributed.meet_commands import meet_commands as meet_commands_at
from imagenet_ddp.distributed.meet_commands import report_refusal
from imagenet_ddp.distributed.place import Address, Place
from imagenet_ddp.distributed.shared_file import share_file
from imagenet_ddp.errors import ConfigError

MACHINE = threading.local()


@pytest.fixture(autouse=True)
def _machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each thread may be on a machine of its own."""
    process = compare_members.this_process

    def this_process() -> compare_members.Process:
        name = getattr(MACHINE, "name", "")
        return replace(process(), machine=name, host=name) if name else process()

    for module in (meet_commands, store_file):
        monkeypatch.setattr(module, "this_process", this_process)
    monkeypatch.setattr(store, "serve", store.serve.__wrapped__)  # once in a process, but not once for all threads
    monkeypatch.setattr(store, "POLL_S", 0.02)
    for name, value in (("WAIT_S", 0.5), ("SEND_S", 8.0)):
        monkeypatch.setattr(meet_commands, name, value)
    yield
    store_file.remove_own_files()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def address() -> Address:
    return Address("127.0.0.1", free_port())


def start(
    pool: ThreadPoolExecutor, infos: list[Place], machines: str = "", timeout_s: float = 20
) -> list[Future[tuple[Place, Meeting]]]:
    """Start the commands, each on its machine."""

    def command(place: Place, machine: str) -> tuple[Place, Meeting]:
        MACHINE.name = machine
        return meet_commands_at(place, {}, 2, timeout_s)

    names = machines or [""] * len(infos)
    return [pool.submit(command, info, name) for info, name in zip(infos, names, strict=True)]


# ---- one command per node, or one per process ------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [(0, 1, 2), (1, None, None)])
def test_nodes_meet_at_a_port(pool: ThreadPoolExecutor, address: Address, numbers: tuple[int | None, ...]):
    """Given, found out, and mixed: the one that serves is node 0, holds rank 0, and leaves last."""
    infos = [Place(node_rank=number, num_nodes=3, address=address, is_node=True, is_typed=True) for number in numbers]
    met = [future.result(30) for future in start(pool, infos)]
    for (first, meeting), given in zip(met, numbers, strict=True):
        number = meeting.number
        assert given in (None, number)
        assert first == Place(2 * number, 0, number, 6, 2, 3, address, is_node=True, is_typed=True)
    zero, *others = sorted((meeting for _, meeting in met), key=lambda meeting: meeting.number)
    assert [zero.number, *(other.number for other in others)] == [0, 1, 2]
    leaving = pool.submit(zero.leave, 10)
    others[0].leave(1)
    time.sleep(0.3)
    assert not leaving.done()
    others[1].leave(1)
    leaving.result(1)


def ranks(address: Address, local: int, local_ranks: str = "0101") -> list[Place]:
    """Four commands. local: processes per node; 0 if no launcher provides it."""
    found = []
    for rank, local_rank in enumerate(map(int, local_ranks)):
        nodes = (rank // local, 4, local, 4 // local) if local else (0, 4, 0, 1)
        found.append(Place(rank, local_rank, *nodes, address, launcher="cluster.rank", is_typed=True))
    return found


@pytest.mark.parametrize("local", [2, 0])
def test_ranks_meet_and_nodes_are_counted_where_nobody_said(pool: ThreadPoolExecutor, address: Address, local: int):
    for rank, future in enumerate(start(pool, ranks(address, local), "aabb")):
        assert future.result(30)[0] == Place(
            rank, rank % 2, rank // 2, 4, 2, 2, address, launcher="cluster.rank", is_typed=True
        )


@pytest.mark.parametrize(
    ("local", "machines", "local_ranks", "said"),
    [
        (2, "abcd", "0101", "by machine, with 2 on each and local ranks from 0, but rank 0 is local rank 0 on a, "),
        (0, "aaab", "0120", "with 3 on each"),
        (0, "aabb", "0100", "rank 3 is local rank 0 on b. Hint: "),
    ],
)
def test_ranks_that_do_not_lie_as_they_say(
    pool: ThreadPoolExecutor, address: Address, local: int, machines: str, local_ranks: str, said: str
):
    """The numbers of all show it, so all are told at once, and nobody waits for the one that is wrong."""
    for future in start(pool, ranks(address, local, local_ranks), machines):
        (text,) = mistakes(future)
        assert said in text


# ---- a command that is refused tells those who wait for it -----------------------------------------------------------

MISTAKE = "optim.lr must be a number > 0, got abc. Hint: set optim.lr=0.1."


@pytest.mark.slow
def test_all_end_at_once_with_the_cause(tmp_path: Path, tree: Path, address: Address) -> None:
    """Real commands, started together, as by a script."""
    words = [*SMALL, f"data.root={tree}", f"cluster.address=tcp://{address}", "cluster.timeout_s=90",
             "trainer.num_nodes=2", "trainer.devices=1"]  # fmt: skip
    started = [
        forked_commands.start("imagenet_ddp.train", *words, *own, folder=tmp_path, environment=clean_environ())
        for own in (["cluster.node_rank=0"], ["cluster.node_rank=1", "data.root=/nowhere"])
    ]
    errs = [" ".join(process.communicate(timeout=60)[1].split()) for process in started]
    assert [process.returncode for process in started] == [2, 2], errs
    host = compare_members.this_process().host
    assert f"node 1 ({host}) was refused: data.root must be a folder, but /nowhere does not exist." in errs[0]
    assert "have been informed that" in errs[1]
    assert not any("Traceback" in err or "frame #" in err for err in errs)


def as_rank(address: Address, number: int, size: int) -> Place:
    return Place(rank=number, world_size=size, address=address)


def others(pool: ThreadPoolExecutor, address: Address, numbers: list[int], size: int) -> list[Future[Meeting]]:
    """Those who wait at the store."""

    def come(number: int) -> Meeting:
        found = find_store.find(as_rank(address, number, size), 10, f"rank {number}")
        return meet_as(store.of_attempt(found.store, Place()), number, size, 3.0)

    waiting = [pool.submit(come, number) for number in numbers]
    time.sleep(0.5)
    return waiting


@pytest.mark.parametrize("refused", [0, 2])
def test_those_who_wait_are_told(pool: ThreadPoolExecutor, address: Address, refused: int, capsys: Any) -> None:
    """Rank 0 serves the store only for this."""
    waiting = others(pool, address, [rank for rank in range(3) if rank != refused], 3)
    report_refusal(as_rank(address, refused, 3), [MISTAKE, "second. Hint: x."])
    host = compare_members.this_process().host
    for future in waiting:
        expected = [f"rank {refused} ({host}) was refused: {each}" for each in (MISTAKE, "second. Hint: x.")]
        assert mistakes(future) == expected
    assert f"have been informed that rank {refused} was refused.\n" in capsys.readouterr().err


def test_nobody_is_told_who_has_met(pool: ThreadPoolExecutor, address: Address, capsys: Any) -> None:
    assert [future.result(10).number for future in others(pool, address, [0, 1], 2)] == [0, 1]
    report_refusal(as_rank(address, 1, 2), [MISTAKE])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", [0, 1])
def test_another_program_is_there(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """It accepts connections, but sends nothing."""
    monkeypatch.setattr(store, "NAME_LOOKUP_S", 0.5)  # within SEND_S, so that no thread of this test outlives it
    with program(None) as port:
        report_refusal(as_rank(Address("127.0.0.1", port), number, 2), [MISTAKE])


TCP = "tcp://10.0.0.1:29500"
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": "2", "WORLD_SIZE": "4",
            "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "29500"}  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "trainer", "environ", "others_wait"),
    [
        ({}, {}, {}, False),
        ({"address": TCP, "rank": 1, "local_rank": 1, "world_size": 2}, {}, {}, True),
        ({"address": TCP, "node_rank": 1}, {"num_nodes": 2}, {}, True),
        ({}, {}, TORCHRUN, True),
        ({}, {}, TORCHRUN | {"LOCAL_RANK": "1", "RANK": "3"}, False),  # the node's first rank speaks
        ({}, {}, TORCHRUN | {"WORLD_SIZE": "2", "RANK": "0", "GROUP_RANK": "0"}, False),  # torchrun ends the others
    ],
)
def test_who_waits(
    cluster: dict[str, Any], trainer: dict[str, Any], environ: dict[str, str], others_wait: bool
) -> None:
    config = CommonConfig(cluster=ClusterConfig(**cluster), trainer=TrainerConfig("cpu", **trainer))
    assert find_place(config, environ).others_wait == others_wait


# ---- a file on its way from number 0 to the others ------------------------------------------------------------------


def share(path: Path | None) -> list[Path | None]:
    with FakeRanks(connect(3)) as fake_ranks:
        members = join_all(fake_ranks, 3)
        return [
            future.result(60)
            for future in call_all(fake_ranks, members, lambda m: share_file(m, path if m.number == 0 else None))
        ]


def test_a_file_that_is_lacking_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "last.ckpt"
    path.write_bytes(b"weights" * 1000)
    assert share(None) == [None] * 3
    assert share(path) == [path] * 3, "it is there"
    monkeypatch.setattr(shared_file, "CHUNK_BYTES", 999)
    is_file = Path.is_file  # asked on the disks of the others
    monkeypatch.setattr(Path, "is_file", lambda each: each != path and is_file(each))
    found = share(path)
    assert found[0] == path
    for copy in found[1:]:
        assert copy is not None and copy != path and copy.name == "last.ckpt"
        assert copy.read_bytes() == path.read_bytes()
        assert copy.parent.stat().st_mode & 0o777 == 0o700, "of nobody else on that machine"
    assert found[1] != found[2]


@pytest.mark.parametrize(
    ("announced", "said"),
    [
        ({"bytes": 10**17}, "needs 100,000,000.0 GB in "),
        ({"bytes": -1}, "`file` in the rendezvous store is not what a process of this run posts"),
        ({"path": "/somewhere/.."}, "`file` in the rendezvous store is not what a process of this run posts"),
        ({"sha256": "../x"}, "`file` in the rendezvous store is not what a process of this run posts"),
    ],
)
def test_what_a_stranger_announces_takes_no_space(announced: dict[str, Any], said: str):
    file = {"path": "/nowhere/last.ckpt", "bytes": 9, "sha256": "0" * 64}
    with FakeRanks(connect(2)) as fake_ranks:
        first, second = join_all(fake_ranks, 2)
        posted = fake_ranks.pool.submit(first.broadcast, "file", {**file, **announced})
        receiving = fake_ranks.pool.submit(share_file, second, None)
        posted.result(15)
        if "bytes" in announced and announced["bytes"] > 0:
            fake_ranks.pool.submit(first.agree, "who has the file", True, all)
            accepting = fake_ranks.pool.submit(first.agree, "space for the file", None, shared_file.refuse_lack)
            assert said in mistakes(receiving)[0] and said in mistakes(accepting)[0]
        else:
            assert said in mistakes(receiving, ConfigError)[0]
