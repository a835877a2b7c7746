"""A checkpoint is written whole or not at all, and only ours is read."""

import os
import resource
import threading
from pathlib import Path

import pytest
import torch

from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.runs.checkpoint_file import (
    FORMAT,
    KEY,
    AtomicCheckpointIO,
    link_or_copy,
    max_new_checkpoints,
    read,
)


def test_a_failing_write_leaves_the_last_good_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io, path = AtomicCheckpointIO(), tmp_path / "checkpoints/last.ckpt"
    io.save_checkpoint({"step": 1}, path)

    def full(checkpoint: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(RunError, match=f"{path} cannot be written: no space left on device. What was saved before"):
        io.save_checkpoint({"step": 2}, path)
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"], "nothing half-written stays"


def test_a_disk_that_takes_half_of_it(tmp_path: Path) -> None:
    """The real torch.save, which hides what the disk has answered."""
    io, path = AtomicCheckpointIO(), tmp_path / "last.ckpt"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        with pytest.raises(RunError, match=f"{path} cannot be written: file too large"):
            io.save_checkpoint({"weights": torch.zeros(2**20)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("max_epochs", "resumed", "most"),
    [(1, False, 1), (2, False, 2), (90, False, 3), (-1, False, 3), (None, False, 3), (90, True, 1)],
)
def test_room_for_so_many(max_epochs: int | None, resumed: bool, most: int) -> None:
    assert max_new_checkpoints(max_epochs, resumed=resumed) == most


def test_another_mistake_is_not_the_disks(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        AtomicCheckpointIO().save_checkpoint({"lock": threading.Lock()}, tmp_path / "last.ckpt")


def test_best_stays_when_last_goes_on(tmp_path: Path) -> None:
    io, last, best = AtomicCheckpointIO(), tmp_path / "last.ckpt", tmp_path / "best.ckpt"
    io.save_checkpoint({"step": 1}, last)
    link_or_copy(last, best)
    io.save_checkpoint({"step": 2}, last)
    assert torch.load(best, weights_only=True) == {"step": 1}
    link_or_copy(last, best)
    assert torch.load(best, weights_only=True) == {"step": 2}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no such file"),
        (b"", "cannot be read as one"),
        (b"PK\x03\x04 broken zip", "cannot be read as one"),
        ({"state_dict": {}}, "another program's"),
        ([1, 2], "another program's"),
        ({KEY: {"format": 1, "version": "0.1"}}, "must have checkpoint format 2, got 1"),
        ({KEY: {"format": FORMAT + 1, "version": "9.9"}}, "written by imagenet_ddp 9.9"),
        ({KEY: {"format": FORMAT}, "evil": os.system}, "cannot be read as one"),
    ],
)
def test_what_is_no_checkpoint_of_ours(tmp_path: Path, content: object, said: str) -> None:
    path = tmp_path / "x.ckpt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(ConfigError, match=said) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "Hint:" in str(caught.value)
