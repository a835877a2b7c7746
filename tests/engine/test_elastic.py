"""Ranks of a run whose nodes may leave; distributed/test_several_hosts.py has whole runs."""

import sys

import pytest

from imagenet_ddp.engine import elastic


def test_an_unexpected_error_of_a_rank_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch's agent writes it to a file."""
    monkeypatch.setattr(sys, "argv", ["imagenet_ddp.train"])

    def train() -> float:
        assert sys.argv[1:] == ["seed=1"]
        raise OverflowError("before the run has begun")

    with pytest.raises(SystemExit) as caught:
        elastic._rank(train, ["seed=1"])
    assert caught.value.code == 1
    assert "OverflowError: before the run has begun" in capsys.readouterr().err
