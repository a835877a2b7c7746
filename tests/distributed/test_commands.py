"""Commands that share a job, are refused, and send each other a file: threads over real stores on the loopback."""

import shlex
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
from helpers.fake_ranks import FakeRanks, call_all, connect, join_all, join_bounded, meet_as, mistakes
from helpers.ports import free_port, program
from helpers.train_runs import wait_for

from imagenet_ddp.cli.check_launch import find_place
from imagenet_ddp.config.schema.distributed import ClusterConfig
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.schema.trainer import TrainerConfig
from imagenet_ddp.distributed import commands as module
from imagenet_ddp.distributed import compare_members, shared_file, store, store_file
from imagenet_ddp.distributed import meet as meet_module
from imagenet_ddp.distributed.commands import Commands, connect_commands, find_store, report_refusal
from imagenet_ddp.distributed.meet import Meeting, meet
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

    for each in (meet_module, module, store_file):
        monkeypatch.setattr(each, "this_process", this_process)
    monkeypatch.setattr(store, "serve", store.serve.__wrapped__)  # once in a process, but not once for all threads
    monkeypatch.setattr(store, "POLL_S", 0.02)
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")  # which report_refusal sets
    for name, value in (("WAIT_S", 0.5), ("SEND_S", 8.0)):
        monkeypatch.setattr(module, name, value)
    yield
    store_file.remove_own_files()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def address() -> Address:
    return Address("127.0.0.1", free_port())


def start(pool: ThreadPoolExecutor, places: list[Place]) -> list[Future[Commands]]:
    """Start the commands of nodes, each of which starts two ranks."""
    return [pool.submit(connect_commands, place, {}, 2, 20) for place in places]


# ---- one command per node --------------------------------------------------------------------------------------------


def node(address: Address, number: int | None, num_nodes: int = 3) -> Place:
    return Place(node_rank=number, num_nodes=num_nodes, address=address, is_node=True, is_typed=True)


@pytest.mark.parametrize("numbers", [(0, 1, 2), (None, None, None)])
def test_nodes_claim_their_numbers(pool: ThreadPoolExecutor, address: Address, numbers: tuple[int | None, ...]):
    """Given or found out: the one that serves is node 0, holds rank 0, decides on the job, and leaves last."""
    found = [future.result(30) for future in start(pool, [node(address, number) for number in numbers])]
    for commands, given in zip(found, numbers, strict=True):
        number = commands.place.node_rank
        assert number is not None and given in (None, number)
        assert commands.place == Place(2 * number, 0, number, 6, 2, 3, address, is_node=True, is_typed=True)
    zero, *others = sorted(found, key=lambda each: each.place.rank)
    assert [each.place.node_rank for each in (zero, *others)] == [0, 1, 2]
    waiting = [pool.submit(each.wait_for_job) for each in others]
    zero.post_job({"lr": 0.1})
    assert [future.result(10) for future in waiting] == [({"lr": 0.1}, False)] * 2
    assert zero.facts == others[0].facts == others[1].facts != {}, "their ranks compare what they have decided"
    leaving = pool.submit(zero.leave, 10)
    others[0].leave(1)
    time.sleep(0.3)
    assert not leaving.done()
    others[1].leave(1)
    leaving.result(1)


def test_a_number_is_claimed_once(pool: ThreadPoolExecutor, address: Address):
    """The others would wait for the number that is not there, so they are told; those of a whole job are not."""
    (zero,) = [future.result(30) for future in start(pool, [node(address, 0)])]
    start(pool, [node(address, 1)])[0].result(30)
    waiting = pool.submit(zero.wait_for_job)
    (text,) = mistakes(start(pool, [node(address, 1)])[0], ConfigError)
    assert text.startswith("node 1 must be unique, but is claimed by ")
    assert "Hint: set a different cluster.node_rank or NODE_RANK in each command." in text
    assert mistakes(waiting) == [text]


@pytest.mark.parametrize("number", [1, None])
def test_a_node_too_many_is_refused_alone(pool: ThreadPoolExecutor, address: Address, number: int | None):
    found = [future.result(30) for future in start(pool, [node(address, each, 2) for each in (0, 1)])]
    (text,) = mistakes(start(pool, [node(address, number, 2)])[0], ConfigError)
    whose = "node 1" if number else "one more node"
    assert text.startswith(f"this is {whose}, but all 2 nodes of the job at this address have met already: ")
    found[0].post_job({})
    assert found[1].wait_for_job() == ({}, False)


def test_a_node_that_waits_is_told(pool: ThreadPoolExecutor, address: Address, monkeypatch: pytest.MonkeyPatch):
    """That node 0 has refused to go on, or that it has not decided in time."""
    zero, one = [future.result(30) for future in start(pool, [node(address, each, 2) for each in (0, 1)])]
    with pytest.raises(ConfigError, match=r"^node 0 has not sent the job after 0 s\. Hint: read its messages\.$"):
        replace(one, timeout_s=0.2).wait_for_job()
    waiting = pool.submit(one.wait_for_job)
    zero.refuse(ConfigError("a. Hint: b."))
    assert mistakes(waiting) == [f"{zero.name} was refused: a. Hint: b."]


# ---- one command per rank --------------------------------------------------------------------------------------------


def ranks(address: Address, local: int, local_ranks: str = "0101") -> list[Place]:
    """Four commands. local: processes per node; 0 if no launcher provides it."""
    found = []
    for rank, local_rank in enumerate(map(int, local_ranks)):
        nodes = (rank // local, 4, local, 4 // local) if local else (0, 4, 0, 1)
        found.append(Place(rank, local_rank, *nodes, address, launcher="cluster.rank", is_typed=True))
    return found


def meetings(pool: ThreadPoolExecutor, places: list[Place], machines: str) -> list[Future[Meeting]]:
    """Connect the commands, each on its machine, and let them meet."""

    def rank(place: Place, machine: str) -> Meeting:
        MACHINE.name = machine
        commands = connect_commands(place, {}, 1, 20)
        return meet(commands.root, commands.place, commands.facts, 20)

    return [pool.submit(rank, place, machine) for place, machine in zip(places, machines, strict=True)]


@pytest.mark.parametrize("local", [2, 0])
def test_nodes_are_counted_where_nobody_said(pool: ThreadPoolExecutor, address: Address, local: int):
    for rank, future in enumerate(meetings(pool, ranks(address, local), "aabb")):
        assert future.result(30).place == Place(
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
    for future in meetings(pool, ranks(address, local, local_ranks), machines):
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


RANK = ["cluster.world_size=2", "cluster.local_rank=0", "cluster.rank=0"]
NODE = ["trainer.num_nodes=2", "trainer.devices=1", "cluster.node_rank=0"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["node", "rank", "file"])
def test_number_0_is_typed_twice(tmp_path: Path, tree: Path, address: Address, kind: str) -> None:
    """On one machine: the second is refused alone, with the line to type instead, with which both train. One with
    another secret learns nothing of the job."""
    typed, where = RANK if kind == "rank" else NODE, f"file://{tmp_path}/meet" if kind == "file" else str(address)
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{address.port}"} if kind == "node" else {}
    typed = [*typed, *([] if variables else [f"cluster.address={where}"])]
    words = [*SMALL, f"data.root={tree}", "trainer.max_epochs=1", "hydra.run.dir=r", *typed]

    def begin(*words: str, **environ: str) -> Any:
        environment = clean_environ(**environ)
        return forked_commands.start("imagenet_ddp.train", *words, folder=tmp_path, environment=environment)

    def refused(command: Any) -> str:
        err = command.communicate(timeout=60)[1]
        assert command.returncode == 2 and "Traceback" not in err and "frame #" not in err, err
        return err

    first = begin(*words, **variables)
    wait_for(lambda: "Missing: " in first.err, first)
    err = refused(begin(*words, **variables))
    noun, host = "rank" if kind == "rank" else "node", compare_members.this_process().host
    said = " ".join(err.split())
    assert f"another command is already {noun} 0 of the job at {where}: {host} (process " in said
    assert "for another job, set another cluster.address or MASTER_PORT on every node." in said
    if kind == "rank":
        corrected = [word for word in words if word not in RANK[1:]] + ["cluster.rank=1", "cluster.local_rank=1"]
        assert "Hint: set a different cluster.rank in each command; for another" in said
    else:
        corrected = shlex.split(err.partition("Corrected command:\n")[2].splitlines()[0])[3:]
        assert "cluster.node_rank=1" in corrected
    if kind == "node":
        err = refused(begin(*words, **variables, IMAGENET_DDP_SECRET="another secret of a job"))
        assert f"port {address.port} of this machine is in use by another program, or by another run" in (
            " ".join(err.split())
        )
    second = begin(*corrected)
    assert [each.wait(90) for each in (first, second)] == [0, 0], first.err + second.err


def as_rank(address: Address, number: int, size: int) -> Place:
    return Place(rank=number, world_size=size, address=address)


def others(pool: ThreadPoolExecutor, address: Address, numbers: list[int], size: int) -> list[Future[Meeting]]:
    """Those who wait at the store."""

    def come(number: int) -> Meeting:
        found = find_store(as_rank(address, number, size), 10, f"rank {number}")
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
    monkeypatch.setattr(store, "NAME_LOOKUP_S", 0.5)  # within SEND_S
    monkeypatch.setattr(module, "SEND_S", 2.0)
    with program(None) as port:
        report_refusal(as_rank(Address("127.0.0.1", port), number, 2), [MISTAKE])
    join_bounded()


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


# ---- a file on its way from rank 0 to the others ---------------------------------------------------------------------


def share(path: Path | None, is_there: bool = True) -> list[Path | None]:
    """Ranks 0 and 1 are on one machine, 2 and 3 on another. is_there: on the disk of the second."""
    with FakeRanks(connect(4)) as fake_ranks:
        of_machines = [replace(meeting, members=[replace(each, pids=f"{each.number // 2}") for each in meeting.members])
                       for meeting in join_all(fake_ranks, 4)]  # fmt: skip

        def share_as(meeting: Meeting) -> Path | None:
            MACHINE.lacks = meeting.number > 1 and not is_there
            return share_file(meeting, path if meeting.number == 0 else None)

        return [future.result(60) for future in call_all(fake_ranks, of_machines, share_as)]


def test_a_file_that_is_lacking_is_sent_to_each_machine_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "last.ckpt"
    path.write_bytes(b"weights" * 1000)
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda each: is_file(each) and not (each == path and MACHINE.lacks))
    assert share(None) == [None] * 4
    assert share(path) == [path] * 4, "it is there"
    monkeypatch.setattr(shared_file, "CHUNK_BYTES", 999)
    *first, copy, same = share(path, is_there=False)
    assert first == [path, path]
    assert copy is not None and copy == same != path and copy.name == "last.ckpt"
    assert copy.read_bytes() == path.read_bytes()
    assert copy.parent.stat().st_mode & 0o777 == 0o700, "of nobody else on that machine"
    shared_file.remove_copies()
    assert not copy.parent.exists()


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
        second = replace(second, members=[replace(each, pids=f"{each.number}") for each in second.members])
        posted = fake_ranks.pool.submit(first.broadcast, "file", {**file, **announced})
        receiving = fake_ranks.pool.submit(share_file, second, None)
        posted.result(15)
        if "bytes" in announced and announced["bytes"] > 0:
            fake_ranks.pool.submit(first.agree, "who lacks the file", False, any)
            accepting = fake_ranks.pool.submit(first.agree, "space for the file", None, shared_file.refuse_lack)
            assert said in mistakes(receiving)[0] and said in mistakes(accepting)[0]
        else:
            assert said in mistakes(receiving, ConfigError)[0]
