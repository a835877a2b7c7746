import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from imagenet_ddp.data.sources import listing as scan
from imagenet_ddp.data.sources.files import FileImages, describe_left_out, list_images
from imagenet_ddp.data.sources.listing import class_folders
from imagenet_ddp.errors import ConfigError


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "train"
    touch(folder, *(f"{name}/{number:03}.jpg" for name in ("cat", "dog", "owl") for number in range(5)))
    touch(folder, "dog/deep/er/0.png", "dog/deep.jpg")
    return folder


def paths(found: FileImages) -> list[str]:
    return [found.names[index] for index in range(len(found.targets))]


def look(folder: Path) -> FileImages:
    return list_images(folder, class_folders(folder))


def test_images_are_sorted_within_their_class(tree: Path):
    found = look(tree)
    assert paths(found)[:6] == [*(f"cat/00{number}.jpg" for number in range(5)), "dog/000.jpg"]
    assert paths(found)[10:12] == ["dog/deep.jpg", "dog/deep/er/0.png"]
    assert found.targets.tolist() == [0] * 5 + [1] * 7 + [2] * 5
    assert found.targets.dtype == np.int64


def test_what_is_left_out_is_counted(tmp_path: Path):
    touch(
        tmp_path / "train",
        *("cat/a.jpg", "cat/._a.jpg", "cat/b.txt", "cat/deep/c.xml", "cat/deep/d.txt", "cat/noext", "cat/.git/x.jpg"),
        *("dog/a.jpg", "loose.jpg", "list.csv", ".DS_Store"),
    )
    os.mkfifo(tmp_path / "train" / "dog" / "pipe.jpg")
    (tmp_path / "train" / "dog" / "link").symlink_to(tmp_path)
    found = look(tmp_path / "train")
    assert paths(found) == ["cat/a.jpg", "dog/a.jpg"]
    assert describe_left_out(found.left_out) == (
        "10 files were left out: 1 outside the class folders, 2 hidden, 1 linking to folders, 1 neither files nor "
        "folders, 5 without an image extension (.txt, .csv, .xml, none)"
    )
    assert describe_left_out(Counter()) == ""


def test_errors_of_the_disk_are_said(tree: Path, monkeypatch: pytest.MonkeyPatch):
    def stale(path: str):
        raise OSError(116, "Stale file handle", path)

    monkeypatch.setattr(scan.os, "scandir", stale)
    with pytest.raises(ConfigError, match=rf"{tree}/? must be readable, but .* failed: Stale file handle\. Hint: "):
        list_images(tree, ["cat"])
