import multiprocessing
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_ddp.data.decoding.image import UnreadableImage
from imagenet_ddp.data.sources.folder import images as folder_images
from imagenet_ddp.data.sources.folder.images import FileImages, digest, split_validation, walk


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path):
    (tmp_path / "cat").mkdir()
    with (tmp_path / "cat" / "huge.jpg").open("wb") as file:
        file.truncate(folder_images.MAX_FILE_BYTES + 2**30)  # takes no room on the disk
    with pytest.raises(UnreadableImage, match=r"huge\.jpg .* the file has 2\.0 GiB"):
        walk(tmp_path, ["cat"]).open(0)


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
    before = digest([walk(tmp_path, ["cat", "dog"])])
    change(tmp_path)
    assert (digest([walk(tmp_path, ["cat", "dog"])]) != before) is is_seen


def many(number: int) -> FileImages:
    names = [f"n{i // 1000:08}/n{i // 1000:08}_{i}.JPEG" for i in range(number)]
    return FileImages.of(Path("/data"), names, np.arange(number) // 1000)


def _in_a_child(images: FileImages, part: FileImages, queue: "multiprocessing.Queue[object]") -> None:
    rows = (0, 5, len(images) - 1)
    queue.put(([images.path(i) for i in rows], [part.path(i) for i in range(3)], part.targets[:3].tolist()))
    queue.put((_private_kib(), images._arrays._fd is not None, images.targets.flags.writeable))


def _private_kib() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory that has no name is Linux's")
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_started_process_has_the_same_listing_not_another(method: str):
    images = many(20_000)
    part = images.subset(np.array([19_999, 3, 7_000])).subset(np.array([2, 0, 1]))
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=_in_a_child, args=(images, part, queue))
    process.start()
    whole, some, targets = queue.get(timeout=60)
    _, is_shared, writeable = queue.get(timeout=60)
    process.join()
    assert whole == [images.path(0), images.path(5), images.path(19_999)]
    assert some == [images.path(7_000), images.path(19_999), images.path(3)]
    assert targets == [7, 19, 0]
    assert is_shared
    assert not writeable


def test_other_targets_go_along():
    """As evaluation sets them, against a checkpoint whose classes stand in another order."""
    images = many(2_000)
    images.targets = 1 - images.targets
    assert pickle.loads(pickle.dumps(images)).targets[:3].tolist() == [1, 1, 1]


def test_splitting_off_many_is_quick():
    images = many(200_000)
    begin = time.monotonic()
    train, val = split_validation(images, 0.1, 0)
    assert (len(train), len(val)) == (180_000, 20_000)
    assert time.monotonic() - begin < 5  # a path at a time took 4 µs × 200,000 and more
