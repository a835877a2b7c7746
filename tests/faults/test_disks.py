"""Disks that are full, read-only or gone, and images that vanish, while a training runs."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import clean_environ
from faults import breakages
from faults.trainings import QUIET, assert_same, begin, command, end, resume, short, told, wait_for
from helpers.forked_commands import Command

pytestmark = pytest.mark.slow
Unharmed = Callable[..., Path]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder "d" that is a disk of 100 MB: a checkpoint has 12."""
    try:
        with breakages.small_disk(tmp_path / "d", "100m") as folder:
            yield folder
    except PermissionError as error:
        pytest.skip(str(error))


def test_full_disk(tree: Path, unharmed: Unharmed, disk: Path, tmp_path: Path) -> None:
    """The disk of the run folder fills up during a run: files saved before stay intact, and once there is room the run
    continues bit-exactly."""
    options = short(tree)
    running = begin(tmp_path, *options, run_dir="d/r")
    wait_for((disk / "r/checkpoints/last.ckpt").exists, running)
    make_room = breakages.fill_the_disk(disk)
    ended = end(running)
    assert ended.code == 1
    told(ended, "cannot be written: no space left on device. Files saved earlier are intact. Hint: make room there")
    refused = command("train", *options, *QUIET, "hydra.run.dir=d/r", folder=tmp_path)
    assert (refused.returncode, "must have room for 2 checkpoints" in " ".join(refused.stderr.split())) == (2, True)
    make_room()
    resume(tmp_path, *options, run_dir="d/r")
    assert_same(unharmed(), disk / "r")


def test_read_only_disk(tree: Path, unharmed: Unharmed, disk: Path, tmp_path: Path) -> None:
    """The disk of the run folder becomes read-only during a run: the run ends with the reason, and once the disk is
    writable it continues bit-exactly."""
    options = short(tree)
    running = begin(tmp_path, *options, run_dir="d/r")
    wait_for((disk / "r/checkpoints/last.ckpt").exists, running)
    mend = breakages.make_read_only(disk)
    try:
        ended = end(running)
        assert ended.code == 1
        told(ended, "cannot be written: read-only file system. Files saved earlier are intact. Hint: fix that problem")
        new = [option for option in options if option != "resume=auto"]
        refused = command("train", *new, *QUIET, "resume=d/r", folder=tmp_path)
        assert (refused.returncode, "Traceback" in refused.stderr) == (2, False), refused.stderr
        assert "d/r must be a writable folder, but is not: read-only file system" in " ".join(refused.stderr.split())
    finally:
        mend()
    resume(tmp_path, *options, run_dir="d/r")
    assert_same(unharmed(), disk / "r")


def test_images_that_vanish(tree: Path, unharmed: Unharmed, tmp_path: Path) -> None:
    """Images are deleted or truncated, or their disk stops answering, during a run: the run ends with an error that
    names the image, and continues bit-exactly once the image is back."""
    own = tmp_path / "tree"
    shutil.copytree(tree, own)
    options = short(own, "data.loader_timeout_s=5")
    for break_it, sentence in (
        (breakages.delete_images, "tree/train/dog/"),
        (breakages.truncate_images, "tree/train/dog/"),
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


def no_answer(tree: Path) -> breakages.Mend:
    """Reading an image never ends: the probe sees to it, because no disk here can be made to hang."""
    (tree.parent / "p/no_answer").touch()
    return (tree.parent / "p/no_answer").unlink


def test_two_trainings_in_one_folder(tree: Path, unharmed: Unharmed, tmp_path: Path) -> None:
    """A second command is started in the folder of a run in progress: the second command is refused, and the first
    one is not affected."""
    options = short(tree)
    running = begin(tmp_path, *options)
    second = Command(
        "imagenet_ddp.train", *options, *QUIET, "hydra.run.dir=r", folder=tmp_path, environment=clean_environ()
    )
    refused = end(second)
    assert refused.code == 2
    told(refused, "r must be free, but another process trains in it. Hint: wait until it ends, or stop it first.")
    assert end(running).code == 0
    assert_same(unharmed(), tmp_path / "r")
