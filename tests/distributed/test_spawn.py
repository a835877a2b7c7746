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


def length_of(place: Place, content: bytes) -> int:
    if len(content) != 2**21:  # far more than a pipe holds
        raise AssertionError
    return len(content)


@pytest.mark.timeout(120)
def test_large_arguments_reach_each_rank():
    assert spawn.Workers(length_of, (bytes(2**21),), 2).run() == 2**21
