import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from imagenet_ddp.data.decode import UnreadableImage
from imagenet_ddp.data.sources import files as folder_images
from imagenet_ddp.data.sources.base import Names
from imagenet_ddp.data.sources.files import FileImages, digest, list_images


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path):
    (tmp_path / "cat").mkdir()
    with (tmp_path / "cat" / "huge.jpg").open("wb") as file:
        file.truncate(folder_images.MAX_FILE_BYTES + 2**30)  # takes no room on the disk
    with pytest.raises(UnreadableImage, match=r"huge\.jpg .* the file is too large \(2\.0 GiB\)"):
        list_images(tmp_path, ["cat"]).open(0)


def test_only_regular_files_are_read(tmp_path: Path):
    """A table may name anything."""
    os.mkfifo(tmp_path / "pipe")
    images = FileImages(tmp_path, Names.of(["pipe", "/dev/zero", "."]), np.zeros(3, np.int64))
    open_files = sorted(Path("/proc/self/fd").iterdir())
    for index in range(3):
        with pytest.raises(UnreadableImage, match="it is not a regular file"):
            images.open(index)
    assert sorted(Path("/proc/self/fd").iterdir()) == open_files


@pytest.mark.parametrize(
    ("change", "is_seen"),
    [
        (lambda tree: (tree / "cat/a.jpg").write_bytes(b"other"), False),
        (lambda tree: (tree / "cat/a.txt").touch(), False),
        (lambda tree: (tree / "cat/a.jpg").rename(tree / "cat/c.jpg"), True),
        (lambda tree: (tree / "cat/a.jpg").rename(tree / "dog/a.jpg"), True),
        (lambda tree: (tree / "cat/a.jpg").unlink(), True),
    ],
    ids=["bytes", "beside", "renamed", "moved", "removed"],
)
def test_a_digest_tells_other_images(change: Callable[[Path], object], is_seen: bool, tmp_path: Path):
    for name in ("cat/a.jpg", "cat/b.jpg", "dog/z.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    before = digest(list_images(tmp_path, ["cat", "dog"]))
    change(tmp_path)
    assert (digest(list_images(tmp_path, ["cat", "dog"])) != before) is is_seen


def many(number: int) -> FileImages:
    names = [f"n{i // 1000:08}/n{i // 1000:08}_{i}.JPEG" for i in range(number)]
    return FileImages(Path("/data"), Names.of(names), np.arange(number) // 1000)


def test_a_pickled_part_of_a_part_has_the_same_images():
    images = many(20_000)
    part = pickle.loads(pickle.dumps(images.subset(np.array([19_999, 3, 7_000])).subset(np.array([2, 0, 1]))))
    assert [part.path(index) for index in range(3)] == [images.path(7_000), images.path(19_999), images.path(3)]
    assert part.targets.tolist() == [7, 19, 0]


def test_other_targets_go_along():
    """As evaluation sets them, against a checkpoint whose classes stand in another order."""
    images = many(2_000)
    images.targets = 1 - images.targets
    assert pickle.loads(pickle.dumps(images)).targets[:3].tolist() == [1, 1, 1]
