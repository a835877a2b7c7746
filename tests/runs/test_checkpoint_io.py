"""A checkpoint is written whole or not at all."""

import os
import resource
import shutil
import sys
import threading
import time
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from imagenet_ddp.errors import RunError
from imagenet_ddp.runs.checkpoint_io import BackgroundCheckpointIO, link_or_copy, wait_until_written
from imagenet_ddp.system.process import exit_at_once


def test_a_disk_that_takes_half_of_it(tmp_path: Path) -> None:
    """The real torch.save, which hides what the disk has answered."""
    io, path = BackgroundCheckpointIO(), tmp_path / "checkpoints/last.ckpt"
    io.save_checkpoint({"step": 1}, path)
    io.wait()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        io.save_checkpoint({"weights": torch.zeros(2**20)}, path)
        with pytest.raises(RunError, match=f"{path} cannot be written: file too large. Files saved earlier"):
            io.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"], "nothing half-written stays"


def test_a_folder_that_is_removed_during_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made again; only a folder that goes each time is an error."""
    io, path, sync, left = BackgroundCheckpointIO(), tmp_path / "checkpoints/last.ckpt", os.fsync, [0]

    def remove(descriptor: int) -> None:
        sync(descriptor)
        if left[0] > 0:
            left[0] -= 1
            shutil.rmtree(path.parent)

    monkeypatch.setattr(os, "fsync", remove)
    left[0] = 2
    io.save_checkpoint({"step": 1}, path)
    io.wait()
    assert torch.load(path, weights_only=True) == {"step": 1}
    left[0] = 99
    io.save_checkpoint({"step": 2}, path)
    with pytest.raises(RunError, match=f"{path} cannot be written: no such file"):
        io.wait()
    io.teardown()


def test_links_follow_the_files(tmp_path: Path) -> None:
    """best.ckpt stays when last.ckpt goes on."""
    io, last, best = BackgroundCheckpointIO(), tmp_path / "last.ckpt", tmp_path / "best.ckpt"
    io.save_checkpoint({"step": 1}, last)
    io.then(link_or_copy, last, best)
    io.save_checkpoint({"step": 2}, last)
    io.wait()
    assert torch.load(best, weights_only=True) == {"step": 1}
    io.then(link_or_copy, last, best)
    assert io.load_checkpoint(best) == {"step": 2}
    last.unlink()  # by somebody who needs room
    io.then(link_or_copy, last, best)
    io.wait()
    assert torch.load(best, weights_only=True) == {"step": 2}
    io.teardown()


def test_no_rank_and_no_process_ends_before_the_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher that sees one rank end with the exit code of a stop kills the others within seconds."""
    io, first, second, save = BackgroundCheckpointIO(), tmp_path / "1.ckpt", tmp_path / "2.ckpt", torch.save

    def slow_save(*arguments: Any) -> None:
        time.sleep(0.3)
        save(*arguments)

    monkeypatch.setattr(torch, "save", slow_save)
    met: list[bool] = []
    strategy = SimpleNamespace(checkpoint_io=io, barrier=lambda name: met.append(first.is_file()))
    io.save_checkpoint({"step": 1}, first)
    wait_until_written(SimpleNamespace(strategy=strategy))  # type: ignore[arg-type]
    assert met == [True]
    io.save_checkpoint({"step": 2}, second)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit):
        exit_at_once(1)
    assert second.is_file()


def test_what_is_written_is_the_moment_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io, path, may_write = BackgroundCheckpointIO(), tmp_path / "last.ckpt", threading.Event()
    save = torch.save

    def slow_save(*arguments: object) -> None:
        assert may_write.wait(60)
        save(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(torch, "save", slow_save)
    weights, tied = torch.zeros(4), torch.zeros(8)
    parts = OrderedDict(a=tied, b=tied.view(8))
    parts._metadata = {"version": 2}  # type: ignore[attr-defined]  # of a state_dict
    io.save_checkpoint({"weights": [weights, (weights, 1)], "parts": parts}, path)
    weights += 1  # the training goes on
    tied += 1
    may_write.set()
    stored = io.load_checkpoint(path)
    assert stored["weights"][0].tolist() == stored["weights"][1][0].tolist() == [0.0] * 4
    assert stored["parts"]["a"].data_ptr() == stored["parts"]["b"].data_ptr()
    assert stored["parts"]._metadata == {"version": 2}
