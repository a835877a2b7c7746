"""Disks that are full, read-only or gone, and images that vanish, while a training runs."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.trainings import QUIET, assert_same, begin, command, end, resume, short, told
from helpers.train_runs import wait_for

pytestmark = pytest.mark.slow
Unharmed = Callable[..., Path]
Mend = Callable[[], None]  # undoes what was done


def delete_images(tree: Path) -> Mend:
    """Delete the images of a class."""
    there = tree / "train/dog"
    away = tree / "gone"
    there.rename(away)
    return lambda: away.rename(there) and None


def truncate_images(tree: Path) -> Mend:
    """Cut off each image of a class in its middle."""
    contents = {path: path.read_bytes() for path in (tree / "train/dog").iterdir()}
    for path, content in contents.items():
        os.truncate(path, len(content) // 2)

    def mend() -> None:
        for path, content in contents.items():
            path.write_bytes(content)

    return mend


def no_answer(tree: Path) -> Mend:
    """Reading an image never ends: the probe sees to it, because no disk here can be made to hang."""
    (tree.parent / "p/no_answer").touch()
    return (tree.parent / "p/no_answer").unlink


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder "d" that is a disk of 100 MB: a checkpoint has 12."""
    folder = tmp_path / "d"
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", folder]).returncode:
        pytest.skip("a disk of its own needs root, and the right to mount")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_full_disk(tree: Path, unharmed: Unharmed, disk: Path, tmp_path: Path) -> None:
    """The disk of the run folder fills up during a run: files saved before stay intact, and once there is room the run
    continues bit-exactly."""
    options = short(tree)
    running = begin(tmp_path, *options, run_dir="d/r")
    wait_for((disk / "r/checkpoints/last.ckpt").exists, running)
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))
    ended = end(running)
    assert ended.code == 1
    told(ended, "cannot be written: no space left on device. Files saved earlier are intact. Hint: make room there")
    refused = command("train", *options, *QUIET, "hydra.run.dir=d/r", folder=tmp_path)
    assert (refused.returncode, "must have room for 2 checkpoints" in " ".join(refused.stderr.split())) == (2, True)
    filler.unlink()
    resume(tmp_path, *options, run_dir="d/r")
    assert_same(unharmed(), disk / "r")


def test_read_only_disk(tree: Path, unharmed: Unharmed, disk: Path, tmp_path: Path) -> None:
    """The disk of the run folder becomes read-only during a run: the run ends with the reason, and once the disk is
    writable it continues bit-exactly."""
    options = short(tree)
    running = begin(tmp_path, *options, run_dir="d/r")
    wait_for((disk / "r/checkpoints/last.ckpt").exists, running)
    subprocess.run(["mount", "--bind", disk, disk], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
    try:
        ended = end(running)
        assert ended.code == 1
        told(ended, "cannot be written: read-only file system. Files saved earlier are intact. Hint: fix that problem")
        new = [option for option in options if option != "resume=auto"]
        refused = command("train", *new, *QUIET, "resume=d/r", folder=tmp_path)
        assert (refused.returncode, "Traceback" in refused.stderr) == (2, False), refused.stderr
        assert "d/r must be a writable folder, but is not: read-only file system" in " ".join(refused.stderr.split())
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
    resume(tmp_path, *options, run_dir="d/r")
    assert_same(unharmed(), disk / "r")


def test_images_that_vanish(tree: Path, unharmed: Unharmed, tmp_path: Path) -> None:
    """Images are deleted or truncated, or their disk stops answering, during a run: the run ends with an error that
    names the image, and continues bit-exactly once the image is back."""
    own = tmp_path / "tree"
    shutil.copytree(tree, own)
    options = short(own, "data.loader_timeout_s=5")
    for break_it, sentence in (
        (delete_images, "tree/train/dog/"),
        (truncate_images, "tree/train/dog/"),
        (no_answer, "timed out after 5 s (data.loader_timeout_s): The training got no batch of images"),
    ):
        running = begin(tmp_path, *options, after=2)
        mend = break_it(own)
        ended = end(running)
        assert ended.code == 1, (break_it, ended.out, ended.err)
        told(ended, sentence)
        mend()
    resume(tmp_path, *options)
    assert_same(unharmed(), tmp_path / "r")
