"""data.groups: which images are kept together when a share is held out for validation."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.data.sources.groups import first_of_each, number_groups, read_groups
from imagenet_ddp.data.sources.image_files import FileImages, list_images
from imagenet_ddp.data.sources.registry import open_source, scan
from imagenet_ddp.data.sources.validation_split import split_validation
from imagenet_ddp.errors import ConfigError


@pytest.fixture
def images(tmp_path: Path) -> FileImages:
    for number in range(60):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % number)
    return list_images(tmp_path / "photos", ["a", "b"])


def table(folder: Path, text: str) -> str:
    (folder / "groups.csv").write_text(text)
    return str(folder / "groups.csv")


@pytest.mark.parametrize("form", ["absolute", "of the folder", "of the current folder"])
def test_the_images_of_a_group_are_on_one_side(
    form: str, images: FileImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of every fold, in one class or two; an image without a group is alone. A copy of a member belongs to its group,
    too, and the share of each class stays."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos/a/00.jpg").write_bytes(b"59")
    begin = {"absolute": f"{tmp_path}/photos/", "of the folder": "", "of the current folder": "photos/"}[form]
    rows = [f"{begin}{'ab'[n % 2]}/{n:02}.jpg,{n // 3 if n < 54 else ''}\n" for n in range(60)]
    number_groups(table(tmp_path, "path,group\n" + "".join(rows)), images)
    for fold in range(5):
        _, val, _ = split_validation(images, 0.2, 0, fold)
        held_out = {int(Path(val.path(n)).stem) for n in range(len(val))}
        for number in range(18):
            members = {*range(3 * number, 3 * number + 3)} | ({59} if number == 0 else set())
            assert members <= held_out or not members & held_out
        if fold == 0:
            assert abs(len(held_out) - 12) <= 2 and len({n % 2 for n in held_out}) == 2


def test_groups_change_the_digest_and_no_groups_nothing(images: FileImages, tmp_path: Path):
    """Ranks whose tables differ would hold out different images."""
    plain = split_validation(images, 0.2, 0)[2]
    number_groups(table(tmp_path, "path,group\n"), images)
    assert split_validation(images, 0.2, 0)[2] == plain
    number_groups(table(tmp_path, "group;path;cosine\n1;a/00.jpg;0.9\n1;b/01.jpg;0.9\n"), images)
    assert split_validation(images, 0.2, 0)[2] != plain


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path,group\na/00.jpg,1\na/notes.txt,1\na,2\n",
         r"but 2 rows of .* do not: row 3 \(a/notes.txt\), row 4 \(a\). Hint: remove those rows"),
        ("path,group\nx/a/00.jpg,1\nx/b/01.jpg,1\n", r"but 2 rows of .* do not: row 2 \(x/a/00.jpg\), row 3"),
        ("path,label\na/00.jpg,1\n", "but .*groups.csv has no group: its columns are path, label. Hint: "),
        (None, r"but .* is not a file. Hint: set data.groups=null."),
    ],
)  # fmt: skip
def test_a_wrong_table_is_one_sentence(text: str | None, said: str, images: FileImages, tmp_path: Path):
    (tmp_path / "photos/a/notes.txt").touch()
    file = str(tmp_path) if text is None else table(tmp_path, text)
    with pytest.raises(ConfigError, match=said) as caught:
        read_groups(file, images)
    assert [each.keys for each in caught.value.mistakes] == [("data.groups",)]


def test_images_that_were_removed_since_are_left_out_of_the_list(images: FileImages, tmp_path: Path):
    notes: list[str] = []
    file = table(tmp_path, "path,group\na/00.jpg,1\na/gone.jpg,1\na/02.jpg,1\n")
    assert read_groups(file, images, notes=notes).tolist() == read_groups(file, images).tolist() == [[0, 0], [1, 0]]
    assert notes == [f"1 row of {file} is left out, because there are no such images any more: row 3 (a/gone.jpg)."]
    moved = table(tmp_path, "path,group\na/00.jpg,1\nb/02.jpg,1\n")  # to class a
    assert read_groups(moved, images, notes=notes).tolist() == [[0, 0], [1, 0]] and len(notes) == 1


def test_pairs_connect_by_any_number_of_steps():
    assert first_of_each(7, np.array([[5, 4], [6, 5], [2, 1], [4, 0]])).tolist() == [0, 1, 1, 3, 0, 0, 0]
    assert first_of_each(3, np.zeros((0, 2), np.int64)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["imagefolder", "table", "column"])
def test_folders_and_tables_are_split_by_group(name: str, images: FileImages, tmp_path: Path):
    """By a table of groups, or by a column of the table of images. Both splits keep their groups, which the folds of
    an estimate need. A wrong table of groups is found by the first look, before anything is imported."""
    root, number, keys = images.folder, len(images), dict[str, Any]()
    if name == "imagefolder":
        keys = {"train_dir": "."}
    else:
        root = tmp_path / "labels.csv"
        rows = [f"{images.path(n)},{images.targets[n]},P{n // 15}\n" for n in range(number)]
        root.write_text("path,label,Patient\n" + "".join(rows))
    if name == "column":
        keys = {"args": {"group": "Patient"}}
    else:
        text = "path,group\n" + "".join(f"{images.path(n)},{n // 15}\n" for n in range(number))
        keys["groups"] = table(tmp_path, text)
    data = DataConfig.of(name="imagefolder" if name == "imagefolder" else "table", root=str(root), val_fraction=0.5,
                         **keys)  # fmt: skip
    source = open_source(data, 0)
    assert isinstance(source.val, FileImages) and isinstance(source.train, FileImages)
    assert (len(source.val), len(source.train)) == (30, 30)
    held_out = {source.val.path(n) for n in range(30)}
    assert held_out in [{images.path(n) for n in range(number) if n // 15 in (a, b)} for a in (0, 1) for b in (2, 3)]
    assert any(note.startswith("4 groups of two or more images") for note in source.notes)
    for split in (source.train, source.val):
        assert split.groups is not None and len(np.unique(split.groups)) == 2
    assert scan(replace(data, groups=str(tmp_path / "gone.csv")), 0).mistakes


def given_split(form: str, images: FileImages, tmp_path: Path, val: Callable[[int], bool]) -> DataConfig:
    """Return data with a split of its own, in which image n, of group n // 6, is for validation if val(n)."""
    side, name = (lambda n: "val" if val(n) else "train"), lambda n: images.name(n)
    if form == "folders":
        for n in range(len(images)):
            path = tmp_path / "split" / side(n) / name(n)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"%d" % n)
        rows = [f"{side(n)}/{name(n)},{n // 6}\n" for n in range(len(images))]
        groups = table(tmp_path, "path,group\n" + "".join(rows))
        return DataConfig.of(name="imagefolder", root=str(tmp_path / "split"), groups=groups)
    rows = [f"{images.path(n)},{images.targets[n]},{side(n)},{n // 6}\n" for n in range(len(images))]
    (tmp_path / "labels.csv").write_text("path,label,split,group\n" + "".join(rows))
    return DataConfig.of(name="table", root=str(tmp_path / "labels.csv"))


@pytest.mark.parametrize("form", ["folders", "table"])
def test_a_given_split_that_divides_a_group_is_refused(form: str, images: FileImages, tmp_path: Path):
    """One that does not is used, and its training images keep their groups."""
    divided = given_split(form, images, tmp_path, lambda n: n % 5 == 0)
    [mistake] = scan(divided, 0).mistakes
    assert "but 10 groups have images in both, such as" in str(mistake) and "data.val_fraction=0.2" in str(mistake)
    assert not scan(divided, 0, Purpose.EVALUATE).mistakes
    shutil.rmtree(tmp_path / "split", ignore_errors=True)
    source = open_source(given_split(form, images, tmp_path, lambda n: n // 6 in (0, 7)), 0)
    assert isinstance(source.train, FileImages) and source.train.groups is not None and source.val is not None
    assert (len(source.val), len(np.unique(source.train.groups))) == (12, 8)
