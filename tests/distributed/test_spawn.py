"""The processes of one machine."""

import os
import signal

import pytest

from imagenet_ddp.distributed import spawn
from imagenet_ddp.distributed.place import Place


def stop_the_second(place: Place) -> int:
    if place.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return 7


@pytest.mark.timeout(120)
def test_a_rank_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """As one that was stopped before it met the others: the first rank has the result, which says so."""
    monkeypatch.setattr(spawn, "END_S", 0.5)
    assert spawn.Workers(stop_the_second, (), 2).run() == 7
    assert "local rank 1 did not end within 0.5 s of local rank 0, and was killed." in capsys.readouterr().err


def two_steps(place: Place) -> None:
    """Train as three ranks or more do on CPUs, in which torch's C++ code warns of it."""
    from torch import distributed, nn, ones

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    net = nn.parallel.DistributedDataParallel(nn.Linear(3, 3), find_unused_parameters=True)
    for _ in range(2):
        net(ones(2, 3)).sum().backward()


@pytest.mark.timeout(120)
def test_warnings_of_torch_for_its_developers_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    spawn.Workers(two_steps, (), 1).run()
    assert capfd.readouterr().err == ""


def length_of(place: Place, content: bytes) -> int:
    if len(content) != 2**21:  # far more than a pipe holds
        raise AssertionError
    return len(content)


@pytest.mark.timeout(120)
def test_large_arguments_reach_each_rank():
    assert spawn.Workers(length_of, (bytes(2**21),), 2).run() == 2**21
