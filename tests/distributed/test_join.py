"""Commands that meet: as many threads as there are commands, over real stores on the loopback."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_ranks import FakeRanks, call_all, connect, join_all
from helpers.ports import free_port

from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.config.schema.distributed import ClusterConfig
from imagenet_ddp.distributed import join, meet, roster, store, store_file
from imagenet_ddp.distributed.join import Rendezvous, join_commands, share_file
from imagenet_ddp.distributed.launchers.world_info import Address, LaunchInfo, WorldInfo
from imagenet_ddp.distributed.meet import SharedError
from imagenet_ddp.errors import ConfigError

MACHINE = threading.local()


@pytest.fixture(autouse=True)
def _machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each thread may be on a machine of its own."""
    process = roster.this_process

    def this_process() -> roster.Process:
        name = getattr(MACHINE, "name", "")
        return replace(process(), machine=name, host=name) if name else process()

    for module in (meet, store_file):
        monkeypatch.setattr(module, "this_process", this_process)
    monkeypatch.setattr(store, "serve", store.serve.__wrapped__)  # once in a process, but not once for all threads
    monkeypatch.setattr(store, "POLL_S", 0.02)
    yield
    store_file.remove_own_files()


class Commands:
    def __init__(self, timeout_s: float = 20) -> None:
        self.pool, self.timeout_s = ThreadPoolExecutor(16), timeout_s

    def start(
        self, launch_info: LaunchInfo, num_local: int = 2, *, machine: str = "", **options: Any
    ) -> Future[Rendezvous]:
        config = CommonConfig(cluster=ClusterConfig(timeout_s=self.timeout_s), **options)

        def command() -> Rendezvous:
            MACHINE.name = machine
            return join_commands(launch_info, config, num_local)

        return self.pool.submit(command)


@pytest.fixture
def commands() -> Iterator[Commands]:
    commands = Commands()
    yield commands
    commands.pool.shutdown()


def node(address: Address, rank: int | None, size: int = 2, **more: Any) -> LaunchInfo:
    return LaunchInfo("cluster.address", address, None, size, rank, manual=True, **more)


def tcp() -> Address:
    return Address("127.0.0.1", free_port())


def mistakes(future: Future[Any], kind: type = SharedError) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        future.result(30)
    assert type(caught.value) is kind
    return caught.value.mistakes


# ---- one command per node --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [(0, 1, 2), (1, None, None)])
def test_nodes_meet_at_a_port(commands: Commands, ranks: tuple[int | None, ...]):
    """Given, found out, and mixed: the one that serves is node 0, and holds rank 0."""
    address = tcp()
    met = [future.result(30) for future in [commands.start(node(address, rank, 3), 2) for rank in ranks]]
    assert sorted(each.meeting.number for each in met) == [0, 1, 2]
    for each, rank in zip(met, ranks, strict=True):
        number = each.meeting.number
        assert rank in (None, number)
        assert each.starts_workers
        assert each.world_info == WorldInfo(
            2 * number, 0, number, 6, 2, 3, "127.0.0.1", address.port, True, "cluster.address"
        )  # fmt: skip


def test_who_serves_leaves_last(commands: Commands):
    address = tcp()
    first, second = (each.result(30) for each in [commands.start(node(address, rank)) for rank in (0, 1)])
    leaving = commands.pool.submit(first.leave)
    time.sleep(0.3)
    assert not leaving.done()
    second.leave()
    leaving.result(1)


# ---- one command per process -----------------------------------------------------------------------------------------


def ranks(address: Address, local: int, size: int = 4, local_ranks: tuple[int, ...] = ()) -> list[LaunchInfo]:
    """local 0: not told."""
    found = []
    for rank in range(size):
        local_rank = local_ranks[rank] if local_ranks else rank % (local or 2)
        world_info = WorldInfo(
            rank, local_rank, rank // local if local else 0, size, local, size // local if local else 1, address.host,
            address.port, False, "cluster.rank",
        )  # fmt: skip
        found.append(
            LaunchInfo("cluster.rank", address, world_info, world_info.num_nodes, world_info.node_rank, manual=True)
        )
    return found


@pytest.mark.parametrize("local", [2, 0])
def test_ranks_meet_and_nodes_are_counted_where_nobody_said(commands: Commands, local: int):
    address = tcp()
    futures = [commands.start(each, machine=name) for each, name in zip(ranks(address, local), "aabb", strict=True)]
    for rank, future in enumerate(futures):
        met = future.result(30)
        assert not met.starts_workers
        assert met.world_info == WorldInfo(
            rank, rank % 2, rank // 2, 4, 2, 2, "127.0.0.1", address.port, False, "cluster.rank"
        )  # fmt: skip


@pytest.mark.parametrize(
    ("local", "machines", "local_ranks", "said"),
    [
        (2, "abcd", (), "machine by machine, with 2 on each and local ranks from 0, but rank 0 is local rank 0 on a, "),
        (0, "aaab", (0, 1, 2, 0), "with 3 on each"),
        (0, "aabb", (0, 1, 0, 0), "rank 3 is local rank 0 on b. Hint: "),
    ],
)  # fmt: skip
def test_ranks_that_do_not_lie_as_they_say(
    commands: Commands, local: int, machines: str, local_ranks: tuple[int, ...], said: str
):
    """The numbers of all show it, so all are told at once, and nobody waits for the one that is wrong."""
    found = ranks(tcp(), local, local_ranks=local_ranks)
    for future in [commands.start(each, machine=name) for each, name in zip(found, machines, strict=True)]:
        (text,) = mistakes(future)
        assert said in text


# ---- a file on its way from number 0 to the others ------------------------------------------------------------------


def share(path: Path | None) -> list[Path | None]:
    with FakeRanks(connect(3)) as fake_ranks:
        members = join_all(fake_ranks, 3)
        return [future.result(60) for future in call_all(fake_ranks, members, lambda m: share_file(m, path))]


def test_a_file_that_is_lacking_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "last.ckpt"
    path.write_bytes(b"weights" * 1000)
    assert share(None) == [None] * 3
    assert share(path) == [path] * 3, "it is there"
    monkeypatch.setattr(join, "CHUNK_BYTES", 999)
    is_file = Path.is_file  # asked on the disks of the others
    monkeypatch.setattr(Path, "is_file", lambda each: each != path and is_file(each))
    found = share(path)
    assert found[0] == path
    for copy in found[1:]:
        assert copy is not None and copy != path and copy.name == "last.ckpt"
        assert copy.read_bytes() == path.read_bytes()
    assert found[1] != found[2]
