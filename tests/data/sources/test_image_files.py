import os
import pickle
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from imagenet_ddp.config.schema.data import FolderData
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.decoding.heic import HEIC_EXTENSIONS
from imagenet_ddp.data.sources import image_files as folder_images
from imagenet_ddp.data.sources import walk
from imagenet_ddp.data.sources.base import Names
from imagenet_ddp.data.sources.image_files import FileImages, digest, list_images, read_file
from imagenet_ddp.data.sources.registry import scan
from imagenet_ddp.data.sources.walk import (
    class_folders,
    describe_left_out,
    find_images,
    list_folder,
    name_loose,
    validate_images,
)
from imagenet_ddp.errors import ConfigError


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path):
    (tmp_path / "cat").mkdir()
    with (tmp_path / "cat" / "huge.jpg").open("wb") as file:
        file.truncate(folder_images.MAX_FILE_BYTES + 2**30)  # takes no room on the disk
    with pytest.raises(UnreadableImage, match=r"huge\.jpg .* the file is too large \(2\.0 GiB\)"):
        list_images(tmp_path, ["cat"]).open(0)


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b/2.jpg", "b/1.jpg", "b/deep/er/3.png", "b/.hidden/4.jpg", "b/._1.jpg", "a/note.txt", ".git/x.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "loose.jpg").touch()
    return tmp_path


def test_a_link_to_a_parent_is_no_class_and_a_pipe_is_no_image(folder: Path):
    """The link would have the images of all classes, and reading the pipe would never end."""
    before = class_folders(folder), list_folder(folder / "b")[0]
    (folder / "loop").symlink_to(".")
    (folder / "up").symlink_to("..")
    os.mkfifo(folder / "b" / "pipe.jpg")
    assert (class_folders(folder), list_folder(folder / "b")[0]) == before


def test_a_link_to_itself_is_an_image_that_cannot_be_read(folder: Path):
    """And no class, nor a file of another kind."""
    before = class_folders(folder), list_folder(folder / "b")[0]
    for name in ("loop", "b/loop", "b/loop.txt", "b/loop.jpg"):
        (folder / name).symlink_to(Path(name).name)
    assert (class_folders(folder), list_folder(folder / "b")[0]) == (before[0], sorted([*before[1], "loop.jpg"]))
    with pytest.raises(OSError, match="levels of symbolic links"):
        read_file(str(folder / "b/loop.jpg"))


def test_images_to_predict_are_a_folder_a_file_or_a_pattern(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    for name in ("a.jpg", "deep/b.jpg", "c.txt"):
        (tmp_path / name).touch()
    assert find_images(str(tmp_path)) == [f"{tmp_path}/a.jpg", f"{tmp_path}/deep/b.jpg"]
    assert find_images(f"{tmp_path}/c.txt") == [f"{tmp_path}/c.txt"]
    assert find_images(f"{tmp_path}/**/*.jpg") == [f"{tmp_path}/a.jpg", f"{tmp_path}/deep/b.jpg"]
    for pattern in (tmp_path, f"{tmp_path}/c.txt", f"{tmp_path}/**/*.jpg"):
        assert validate_images(str(pattern)) == []
    for pattern in ("", f"{tmp_path}/*.png"):
        assert len(validate_images(pattern)) == 1
        with pytest.raises(
            ConfigError, match=r"must match image files, but .* matches none\. Hint: set images to a file"
        ):
            find_images(pattern)


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
    (tmp_path / "train" / "dog" / "link").symlink_to(tmp_path)
    found = look(tmp_path / "train")
    assert paths(found) == ["cat/a.jpg", "dog/a.jpg"]
    assert describe_left_out(found.left_out, found.loose) == (
        "9 files were left out: 1 outside the class folders (loose.jpg; to use it, move it into the folder of its "
        "class), 2 hidden, 1 linking to folders, 5 of other types (.txt, .csv, .xml, none)"
    )
    assert describe_left_out(Counter()) == ""


def test_of_many_images_outside_the_classes_some_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All of a million names would be kept for the whole training."""
    monkeypatch.setattr(walk, "MOST_LOOSE", 4)
    touch(tmp_path, "cat/a.jpg", *(f"{number}.jpg" for number in range(6)))
    found = look(tmp_path)
    assert (found.left_out["beside"], len(found.loose)) == (6, 4) and list(found.loose) == sorted(found.loose)
    said = describe_left_out(found.left_out, found.loose)
    assert name_loose(["a\nHint: `x`.jpg"], 1).startswith(r"a\nHint: `x`.jpg; "), "it ends the line of the message"
    assert f"6 outside the class folders ({', '.join(found.loose[:3])}, ...; to use them, move them" in said


def test_heic_files_beside_images_are_counted_with_a_way_to_use_them():
    text = describe_left_out(Counter({".heic": 2, "hidden": 1}))
    assert text.startswith("3 files were left out: 1 hidden, 2 of another type (.heic); run `")
    assert " 'pillow-heif>=1.8'` to read HEIC files, or convert them" in text
    assert "HEIC" not in describe_left_out(Counter({".txt": 2}))


def test_a_folder_of_heic_files_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(walk, "IMAGE_EXTENSIONS", walk.IMAGE_EXTENSIONS - {*HEIC_EXTENSIONS})  # without pillow-heif
    (tmp_path / "1.heic").touch()
    with pytest.raises(ConfigError, match=r"none \(but 1 HEIC file, a format that is not read\)\. Hint: run"):
        find_images(str(tmp_path))


def test_a_folder_that_is_removed_meanwhile_has_nothing_and_a_class_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    entries, removed = walk._entries, tmp_path / "cat" / "old"

    def remove(folder: str) -> Iterator[tuple[str, str]]:
        if Path(folder) == removed:
            shutil.rmtree(removed)
        yield from entries(folder)

    for file in ("cat/1.jpg", "cat/old/2.jpg", "cat/new/3.jpg", "dog/1.jpg"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.setattr(walk, "_entries", remove)
    assert list_folder(tmp_path / "cat")[0] == ["1.jpg", "new/3.jpg"]
    removed = tmp_path / "dog"
    data = FolderData(name="imagefolder", root=str(tmp_path), train_dir=".", val_fraction=0.5)
    (mistake,) = scan(data, 0).mistakes
    assert f"nothing must be removed from {tmp_path} while it is read, but {tmp_path}/dog" in str(mistake)
