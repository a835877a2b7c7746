"""Commands that meet: as many threads as there are commands, over real stores on the loopback."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_ranks import FakeRanks, call_all, connect, join_all
from helpers.ports import free_port
from torch.distributed import TCPStore

from imagenet_ddp.config.schema.distributed import ClusterConfig
from imagenet_ddp.distributed import facts, join, store, store_file
from imagenet_ddp.distributed.join import Rendezvous, join_commands, share_file
from imagenet_ddp.distributed.launchers.world_info import Address, LaunchInfo, WorldInfo
from imagenet_ddp.distributed.meet import SharedError
from imagenet_ddp.errors import ConfigError

MACHINE = threading.local()


@pytest.fixture(autouse=True)
def _machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each thread may be on a machine of its own."""
    process = facts.this_process

    def this_process() -> dict[str, Any]:
        name = getattr(MACHINE, "name", "")
        return {**process(), **({"machine": name, "host": name} if name else {})}

    for module in (facts, store_file):
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
        config = {"seed": 0, "cluster": asdict(ClusterConfig()), **options}

        def command() -> Rendezvous:
            MACHINE.name = machine
            return join_commands(launch_info, config, num_local, self.timeout_s)

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


@pytest.mark.parametrize("ranks", [(0, 1, 2), (None, None, None), (1, None, None)])
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


@pytest.mark.parametrize("ranks", [(0, 1), (None, None)])
def test_nodes_meet_through_a_file(commands: Commands, ranks: tuple[int | None, ...], tmp_path: Path):
    address = Address(file=str(tmp_path / "job42"))
    futures = [commands.start(node(address, rank)) for rank in ranks]
    met = [future.result(30) for future in futures]
    assert sorted(each.meeting.number for each in met) == [0, 1]
    assert len({each.world_info.port for each in met}) == 1
    store_file.remove_own_files()
    assert list(tmp_path.iterdir()) == []


def test_who_serves_leaves_last(commands: Commands):
    address = tcp()
    first, second = (each.result(30) for each in [commands.start(node(address, rank)) for rank in (0, 1)])
    leaving = commands.pool.submit(first.leave)
    time.sleep(0.3)
    assert not leaving.done()
    second.leave()
    leaving.result(1)


def test_a_missing_node_is_named(commands: Commands):
    commands.timeout_s = 0.5
    address = tcp()
    futures = [commands.start(node(address, rank, 4)) for rank in (0, 2)]
    for future in futures:
        (text,) = mistakes(future)
        assert (
            "2 of 4 nodes joined after" in text
            and "Missing: node 1, node 3. Hint: start the command on the missing" in text
        )
        assert "On every node, 127.0.0.1 is the node itself, so set the address" in text


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


def test_ranks_meet(commands: Commands):
    address = tcp()
    futures = [commands.start(each, machine=name) for each, name in zip(ranks(address, 2), "aabb", strict=True)]
    for rank, future in enumerate(futures):
        met = future.result(30)
        assert not met.starts_workers
        assert met.world_info == WorldInfo(
            rank, rank % 2, rank // 2, 4, 2, 2, "127.0.0.1", address.port, False, "cluster.rank"
        )  # fmt: skip


def test_nodes_are_counted_where_nobody_said(commands: Commands):
    futures = [commands.start(each, machine=name) for each, name in zip(ranks(tcp(), 0), "aabb", strict=True)]
    places = [future.result(30).world_info for future in futures]
    assert [(each.node_rank, each.local_rank, each.local_world_size, each.num_nodes) for each in places] == [
        (0, 0, 2, 2), (0, 1, 2, 2), (1, 0, 2, 2), (1, 1, 2, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("local", "machines", "local_ranks", "said"),
    [
        (2, "abcd", (), "rank 1 must be local rank 1 on a, the machine of rank 0 (2 processes per node), "
         "got local rank 1 on b. Hint:"),
        (0, "aaab", (0, 1, 2, 0), "the same number of processes, got 3 on a, 1 on b. Hint:"),
        (0, "abab", (0, 0, 1, 1), "rank 1 must be local rank 1 on a"),
        (0, "aabb", (0, 1, 0, 0), "rank 3 must be local rank 1 on b, the machine of rank 2 (2 processes per node), got "
         "local rank 0 on b"),
    ],
)  # fmt: skip
def test_ranks_that_do_not_lie_as_they_say(
    commands: Commands, local: int, machines: str, local_ranks: tuple[int, ...], said: str
):
    """The numbers of all show it, so all are told at once, and nobody waits for the one that is wrong."""
    found = ranks(tcp(), local, local_ranks=local_ranks)
    begin = time.monotonic()
    for future in [commands.start(each, machine=name) for each, name in zip(found, machines, strict=True)]:
        (text,) = mistakes(future)
        assert said in text
    assert time.monotonic() - begin < 60


def test_a_missing_rank_is_named_with_its_node(commands: Commands):
    commands.timeout_s = 0.5
    futures = [commands.start(each) for each in ranks(tcp(), 2) if each.world_info and each.world_info.rank != 3]
    for future in futures:
        assert "Missing: rank 3 (node 1, local rank 1). Hint:" in mistakes(future)[0]


def test_a_launcher_s_store_is_used(commands: Commands):
    """torchrun's agent serves it: rank 0 does not."""
    served = store.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    address = Address("127.0.0.1", served.port)
    found = []
    for rank in range(2):
        world_info = WorldInfo(rank, rank, 0, 2, 2, 1, "127.0.0.1", served.port, True, "torchrun", attempt=1)
        found.append(commands.start(LaunchInfo("torchrun", address, world_info, 1, 0)))
    assert [each.result(30).meeting.number for each in found] == [0, 1]
    assert served.check(["imagenet_ddp/1/commands/verdict"])


# ---- a file on its way from number 0 to the others ------------------------------------------------------------------


@pytest.fixture(scope="module")
def connections() -> list[TCPStore]:
    return connect(3)


@pytest.fixture
def fake_ranks(connections: list[TCPStore]) -> Iterator[FakeRanks]:
    with FakeRanks(connections) as fake_ranks:
        yield fake_ranks


@pytest.fixture
def sent(fake_ranks: FakeRanks) -> Callable[[Path | None], list[Path | None]]:
    def send(path: Path | None) -> list[Path | None]:
        members = join_all(fake_ranks, 3)
        return [future.result(60) for future in call_all(fake_ranks, members, lambda m: share_file(m, path))]

    return send


def test_a_file_that_is_there_is_not_sent(sent: Callable[..., Any], tmp_path: Path):
    path = tmp_path / "last.ckpt"
    path.write_bytes(b"weights")
    assert sent(path) == [path] * 3


def test_no_file(sent: Callable[..., Any]):
    assert sent(None) == [None] * 3


def test_a_file_that_is_lacking_is_sent(sent: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "last.ckpt"
    path.write_bytes(b"weights" * 1000)
    monkeypatch.setattr(join, "CHUNK_BYTES", 999)
    is_file = Path.is_file  # asked on the disks of the others
    monkeypatch.setattr(Path, "is_file", lambda each: each != path and is_file(each))
    found = sent(path)
    assert found[0] == path
    for copy in found[1:]:
        assert copy != path and copy.name == "last.ckpt"
        assert copy.read_bytes() == path.read_bytes()
    assert found[1] != found[2]
