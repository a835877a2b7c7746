import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_ddp.data.sources.folder import disk_threads, scan, walk
from imagenet_ddp.data.sources.folder.scan import class_folders
from imagenet_ddp.data.sources.folder.walk import Listing, describe_left_out, list_images
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


def never(line: str) -> None:
    raise AssertionError(line)


def paths(found: Listing) -> list[str]:
    parts = np.split(found.arrays["text"], found.arrays["ends"][:-1]) if len(found.arrays["ends"]) else []
    return [os.fsdecode(part.tobytes()) for part in parts]


def look(folder: Path, say: Callable[[str], None] = never) -> Listing:
    return list_images(folder, class_folders(folder), say)


def make_late(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    real = os.scandir

    def late(path: Any) -> Any:
        time.sleep(seconds)
        return real(path)

    monkeypatch.setattr(scan.os, "scandir", late)


def test_images_are_sorted_within_their_class(tree: Path):
    found = look(tree)
    assert paths(found)[:6] == [*(f"cat/00{number}.jpg" for number in range(5)), "dog/000.jpg"]
    assert paths(found)[10:12] == ["dog/deep.jpg", "dog/deep/er/0.png"]
    assert found.arrays["targets"].tolist() == [0] * 5 + [1] * 7 + [2] * 5
    assert found.arrays["targets"].dtype == np.int64


def test_what_is_left_out_is_counted(tmp_path: Path):
    touch(
        tmp_path / "train",
        *("cat/a.jpg", "cat/._a.jpg", "cat/b.txt", "cat/deep/c.xml", "cat/deep/d.txt", "cat/noext", "cat/.git/x.jpg"),
        *("dog/a.jpg", "loose.jpg", "list.csv", ".DS_Store"),
    )
    os.mkfifo(tmp_path / "train" / "dog" / "pipe.jpg")
    found = look(tmp_path / "train")
    assert paths(found) == ["cat/a.jpg", "dog/a.jpg"]
    assert describe_left_out(found.left_out) == (
        "9 files left out: 1 beside the class folders, 2 hidden, 1 neither files nor folders, 5 not images by "
        "extension (.txt, .csv, .xml, none)"
    )
    assert describe_left_out(Counter()) == ""


def test_a_late_disk_is_asked_in_many_threads(tree: Path, monkeypatch: pytest.MonkeyPatch):
    for number in range(40):
        touch(tree, f"more{number}/a/b.jpg")
    expected = paths(look(tree))
    make_late(monkeypatch, 0.02)
    begin = time.monotonic()
    assert paths(look(tree)) == expected
    assert time.monotonic() - begin < 0.5 * (86 * 0.02)


def test_it_is_said_how_far_a_long_walk_is(tree: Path, monkeypatch: pytest.MonkeyPatch):
    """Also while no thread gets an answer."""
    for number in range(8):
        touch(tree, f"more{number}/a.jpg")
    monkeypatch.setattr(walk, "SAY_EVERY_S", 0.1)
    monkeypatch.setattr(disk_threads, "TRIED", 2)  # the folder of class folders, and one class
    make_late(monkeypatch, 0.5)
    said: list[str] = []
    look(tree, said.append)
    assert said[0] == f"Walking {tree}: 0 images so far, 11 folders to go at least."
    assert said.count(f"Walking {tree}: 5 images so far, 10 folders to go at least.") > 1, said


def test_links_are_followed_where_they_lead_out_of_the_split(tree: Path, tmp_path: Path):
    touch(tmp_path, "big/fox/0.jpg", "big/hen/0.jpg", "other/1.jpg", "other/deep/2.jpg")
    for name in ("fox", "hen"):
        (tree / name).symlink_to(tmp_path / "big" / name)
    links = [
        ("fox", "big/hen"),
        ("hen", "big/fox"),
        ("hen", "train"),
        ("owl", "big/hen/x"),
        ("owl", "other"),
        ("cat", "other"),
    ]
    for number, (name, target) in enumerate(links):
        (tree / name / f"link{number}").symlink_to(tmp_path / target)
    (tree / "cat" / "again").symlink_to(tmp_path / "other")
    (tmp_path / "other" / "deep" / "loop").symlink_to(tmp_path / "other")
    for late_s in (disk_threads.LATE_S, 0.0):  # 0.0: by threads
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(disk_threads, "LATE_S", late_s)
            found = paths(look(tree))
        assert [path for path in found if "/0" not in path and "deep" not in path] == [
            "cat/again/1.jpg",
            "owl/link4/1.jpg",
        ]
        assert [path for path in found if path[:3] in ("fox", "hen")] == ["fox/0.jpg", "hen/0.jpg"]
        assert [path for path in found if path.endswith("2.jpg") and "deep" in path and "00" not in path] == [
            "cat/again/deep/2.jpg",
            "owl/link4/deep/2.jpg",
        ]


def test_a_class_without_a_folder_has_no_images_and_the_folder_may_be_missing(tree: Path):
    assert list_images(tree, ["ant", "cat", "zebra"], never).arrays["targets"].tolist() == [1] * 5
    assert paths(list_images(tree / "nowhere", ["cat"], never)) == []


def test_errors_of_the_disk_are_said(tree: Path, monkeypatch: pytest.MonkeyPatch):
    def stale(path: str):
        raise OSError(116, "Stale file handle", path)

    monkeypatch.setattr(scan.os, "scandir", stale)
    for late_s in (disk_threads.LATE_S, 0.0):
        monkeypatch.setattr(disk_threads, "LATE_S", late_s)
        with pytest.raises(ConfigError, match=rf"{tree}/? must be readable, but: Stale file handle\. Hint: "):
            list_images(tree, ["cat"], never)
