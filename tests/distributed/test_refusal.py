"""A command that is refused tells those who wait for it: real commands on the loopback, and its parts in threads."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL, clean_environ
from helpers import forked_commands
from helpers.ports import free_port, program
from torch.distributed import TCPStore

from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.config.schema.distributed import ClusterConfig
from imagenet_ddp.config.schema.trainer import TrainerConfig
from imagenet_ddp.distributed import refusal, store
from imagenet_ddp.distributed.launchers.detect import detect
from imagenet_ddp.distributed.launchers.world_info import Address, LaunchInfo, WorldInfo
from imagenet_ddp.distributed.meet import Meeting, SharedError, meet
from imagenet_ddp.distributed.roster import Roster, this_process

MISTAKE = "optim.lr must be a number > 0, got abc. Hint: set optim.lr=0.1."

# ---- real commands ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_end_at_once_with_the_cause(tmp_path: Path, tree: Path) -> None:
    """Started together, as by a script."""
    words = [*SMALL, f"data.root={tree}", f"cluster.address=tcp://127.0.0.1:{free_port()}", "cluster.timeout_s=90",
             "trainer.num_nodes=2", "trainer.devices=1"]  # fmt: skip
    started = [
        forked_commands.start("imagenet_ddp.train", *words, *own, folder=tmp_path, environment=clean_environ())
        for own in (["cluster.node_rank=0"], ["cluster.node_rank=1", "data.root=/nowhere"])
    ]
    errs = [" ".join(process.communicate(timeout=60)[1].split()) for process in started]
    assert [process.returncode for process in started] == [2, 2], errs
    host = this_process().host
    assert f"node 1 ({host}) was refused: data.root must be a folder, but /nowhere does not exist." in errs[0]
    assert "have been informed that" in errs[1]
    assert not any("Traceback" in err or "frame #" in err for err in errs)


# ---- at the store ----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WAIT_S", 0.3), ("SEND_S", 8.0)):
        monkeypatch.setattr(refusal, name, value)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def refused(address: Address, number: int, size: int) -> LaunchInfo:
    return LaunchInfo(address=address, world_info=WorldInfo(rank=number, world_size=size, store_is_served=False))


class Others:
    """Those at the store who wait: rank 0, or rank 0 and more, of `size`."""

    def __init__(self, pool: ThreadPoolExecutor, size: int = 2, there: int = 1, timeout_s: float = 2.0) -> None:
        ten = timedelta(seconds=10)
        self.server = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False, timeout=ten)
        self.server.set(store.OWNER_KEY, "")
        self.address = Address("127.0.0.1", self.server.port)
        clients = [TCPStore("127.0.0.1", self.server.port, None, False, timeout=ten) for _ in range(there - 1)]
        self.futures: list[Future[Meeting]] = [
            pool.submit(
                meet, store.of_attempt(each, None), "commands", Roster(size, "rank", str, "x."), number, timeout_s,
                leader=number == 0,
            )
            for number, each in enumerate([self.server, *clients])
        ]  # fmt: skip


def test_those_who_wait_are_told(pool: ThreadPoolExecutor, capsys: pytest.CaptureFixture[str]) -> None:
    others = Others(pool, size=3, there=2)
    refusal.send(refused(others.address, 2, 3), [MISTAKE, "second. Hint: x."])
    for future in others.futures:
        with pytest.raises(SharedError) as caught:
            future.result(15)
        host = this_process().host
        assert caught.value.mistakes == [
            f"rank 2 ({host}) was refused: {each}" for each in (MISTAKE, "second. Hint: x.")
        ]
    assert "have been informed that rank 2 was refused.\n" in capsys.readouterr().err


def test_nobody_is_told_who_has_met(pool: ThreadPoolExecutor, capsys: pytest.CaptureFixture[str]) -> None:
    others = Others(pool, size=2, there=2)
    assert [future.result(10).number for future in others.futures] == [0, 1]
    refusal.send(refused(others.address, 1, 2), [MISTAKE])
    assert capsys.readouterr().err == ""


def test_rank_0_is_there_for_those_who_wait(pool: ThreadPoolExecutor) -> None:
    port = free_port()

    def come() -> Meeting:
        found = store.client("127.0.0.1", port, 10, "rank 1 of 2")
        roster = Roster(2, "rank", str, "x.")
        return meet(store.of_attempt(found, None), "commands", roster, 1, 5.0, leader=False)

    waiting = pool.submit(come)
    time.sleep(0.5)
    refusal.send(refused(Address("127.0.0.1", port), 0, 2), [MISTAKE])
    with pytest.raises(SharedError, match=r"^rank 0 .* was refused: optim.lr"):
        waiting.result(10)


@pytest.mark.parametrize("number", [0, 1])
def test_another_program_is_there(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """It accepts connections, but sends nothing."""
    monkeypatch.setattr(store, "NAME_LOOKUP_S", 0.5)  # within SEND_S, so that no thread of this test outlives it
    with program(None) as port:
        refusal.send(refused(Address("127.0.0.1", port), number, 2), [MISTAKE])


# ---- who waits for this command --------------------------------------------------------------------------------------

TCP = "tcp://10.0.0.1:29500"
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": "2", "WORLD_SIZE": "4",
            "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "29500"}  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "trainer", "environ", "found"),
    [
        ({}, {}, {}, None),
        ({"address": TCP, "rank": 1, "local_rank": 1, "world_size": 2}, {}, {}, ("rank", 1, 2)),
        ({"address": TCP, "node_rank": 1}, {"num_nodes": 2}, {}, ("node", 1, 2)),
        ({}, {}, TORCHRUN, ("rank", 2, 4)),
        ({}, {}, TORCHRUN | {"LOCAL_RANK": "1", "RANK": "3"}, None),  # the node's first rank speaks
        ({}, {}, TORCHRUN | {"WORLD_SIZE": "2", "RANK": "0", "GROUP_RANK": "0"}, None),  # torchrun ends the others
    ],
)
def test_who_waits(
    cluster: dict[str, Any], trainer: dict[str, Any], environ: dict[str, str], found: tuple[str, int | None, int] | None
) -> None:
    config = CommonConfig(cluster=ClusterConfig(**cluster), trainer=TrainerConfig("cpu", **trainer))
    who = refusal.refused_command(detect(config, environ), environ)
    assert (who and (who.noun, who.number, who.size)) == found
    assert who is None or str(who.address) == "10.0.0.1:29500"
