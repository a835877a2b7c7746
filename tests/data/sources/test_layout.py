"""Which folders are the splits, whatever they are called, and what is refused, from outside: by the checks that every
command makes before it begins."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from imagenet_ddp.cli.correct import corrected
from imagenet_ddp.config.schema.data import FolderData
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.config.section import to_config
from imagenet_ddp.data.check_data import inspect
from imagenet_ddp.data.sources.layout import find_layout
from imagenet_ddp.data.sources.registry import implied, open_source
from imagenet_ddp.mistakes import Mistake


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make(*splits: str, classes: tuple[str, ...] = ("cat", "dog")) -> None:
    for folder in [f"{split}/{name}" for split in splits for name in classes]:
        Path(folder).mkdir(parents=True)
        (Path(folder) / "1.jpg").touch()


def options(root: str, typed: dict[str, Any]) -> FolderData:
    return to_config({"name": "imagefolder", "root": root, **typed}, FolderData)


def found(root: str, verb: str, typed: dict[str, Any]) -> list[Mistake]:
    return inspect(options(root, typed), 0, purpose=Purpose(verb))[0]


def mistakes(root: str, verb: str = "train", **typed: Any) -> list[str]:
    return list(map(str, found(root, verb, typed)))


def folders(root: str, verb: str = "train", **typed: Any) -> tuple[str, str]:
    found = find_layout(options(root, typed), need_train=verb != "evaluate")
    return str(found.train), str(found.val)


@pytest.mark.parametrize(
    ("made", "root", "train", "val"),
    [
        (["p/train", "p/val", "p/valid", "p/test"], "p", "p/train", "p/val"),
        (["p/train", "p/valid", "p/dev", "p/test"], "p", "p/train", "p/valid"),
        (["p/train", "p/validate"], "p", "p/train", "p/validate"),
        (["p/TRAINING", "p/VAL"], "p", "p/TRAINING", "p/VAL"),
        (["p/training_set", "p/test_set"], "p", "p/training_set", "p/test_set"),
        (["p/train", "p/val"], "p/train", "p/train", "p/val"),
        (["p/train", "p/valid"], "p/train/", "p/train", "p/valid"),
        (["p/train", "p/test"], "p/test", "p/train", "p/test"),
        (["train", "Val"], "train", "train", "Val"),
    ],
)
def test_usual_names_of_splits(made: list[str], root: str, train: str, val: str):
    make(*made)
    assert mistakes(root) == mistakes(root, "evaluate") == []
    assert folders(root) == (train, val)
    assert folders(root, "evaluate")[1] == val
    note = find_layout(options(root, {})).note
    assert all(path in note for path in {train, val} - {"p/train", "p/val"}) and (val in note or val == "p/val")


def test_class_folders_are_scored_whole(tmp_path: Path):
    """Also of a folder named as a split, or beside a class that is."""
    make("t", "p/train", "p/test", "only/train")
    make("vehicles", classes=("bus", "car", "train", "test"))
    for root in ("t", "p/test", "only/train", "vehicles"):
        assert mistakes(root, "evaluate") == []
        assert folders(root, "evaluate")[1] == root
    assert mistakes("vehicles", train_dir=".", val_fraction=0.2) == []
    assert folders("t", "evaluate", train_dir=".")[1] == "t"  # of a checkpoint trained on a share


@pytest.mark.parametrize("verb", ["train", "evaluate"])
@pytest.mark.parametrize(
    ("made", "root", "typed"),
    [
        (["p/train"], "p", {}),
        (["p/train"], "p/train", {}),
        (["p/train", "p/test"], "p", {"train_dir": ".", "val_fraction": 0.2}),
        (["p/Training", "p/valid"], "p", {"train_dir": ".", "val_dir": "."}),
        (["p/train/train", "p/val/val"], "p", {}),
        (["p/p/train", "p/p/val"], "p", {}),
    ],
)
def test_what_the_fixes_say_works(verb: str, made: list[str], root: str, typed: dict[str, Any]):
    """If the command is refused, its first fixes, typed together, are accepted."""
    make(*made)
    refused = found(root, verb, typed)
    assert refused or verb == "evaluate"
    keys: dict[str, Any] = {**typed}
    for option in (option for mistake in refused for option in mistake.fixes[0].options):
        key, _, value = option.removeprefix("data.").partition("=")
        keys[key] = {"null": None}.get(value, float(value) if key == "val_fraction" and value != "null" else value)
    root = keys.pop("root", root)
    assert mistakes(root, verb, **keys) == []


@pytest.mark.parametrize("root", ["p", "p/train"])
def test_a_share_is_kept_beside_a_folder_of_validation_images_if_that_is_left_out(root: str):
    make("p/train", "p/val")
    (text,) = mistakes(root, val_fraction=0.2)
    assert "set data.val_fraction=null to use that folder, or data.val_dir=none to leave it out" in text
    assert mistakes(root, val_fraction=0.2, val_dir="none") == []


@pytest.mark.parametrize(
    ("made", "typed", "said"),
    [
        (["p/train", "p/test"], {"train_dir": "."}, "but test, train are named as splits"),
        (["p/train/train"], {"val_fraction": 0.1}, "but contains only train. Hint: set data.train_dir=train/train"),
    ],
)
def test_what_is_no_class_is_refused(made: list[str], typed: dict[str, Any], said: str):
    make(*made)
    assert any(said in text for text in mistakes("p", **typed))


@pytest.mark.parametrize(
    ("link", "typed"),
    [
        ("p/val", {}),
        ("p/val/cat", {}),
        ("", {"val_dir": "train"}),
        ("", {"val_dir": "../p/train"}),
        ("", {"train_dir": "val"}),
    ],
)
def test_validation_images_are_not_those_of_train(link: str, typed: dict[str, Any]):
    make("p/train", "p/val", "p")
    if link:
        shutil.rmtree(link)
        Path(link).symlink_to(Path("p/train", *Path(link).parts[2:]).absolute())
    assert any("data.val_dir must contain other images than data.train_dir" in text for text in mistakes("p", **typed))


def test_two_classes_are_needed():
    make("p/train", "p/val", classes=("cat",))
    (text,) = mistakes("p")
    assert text.endswith(
        "at least two classes, but contains only cat. Hint: add images of another class as p/train/<class>/."
    )
    assert mistakes("p", "evaluate") == []
    make("own", classes=("cat",))  # a first class folder, without train/ and val/
    (text,) = mistakes("own")
    assert text.endswith("but contains only cat. Hint: add images of another class as own/<class>/.")


@pytest.mark.parametrize(
    ("made", "typed", "expected"),
    [
        (["p"], {}, {"train_dir": ".", "val_fraction": 0.2}),
        (["p"], {"val_fraction": 0.4}, {"train_dir": ".", "val_fraction": 0.4}),
        (["p"], {"train_dir": "photos"}, {}),
        (["p"], {"name": "imagenet"}, {}),
        (["p/train"], {}, {}),
        (["p/test"], {}, {}),
        ([], {}, {}),
    ],
)
def test_class_folders_alone_are_split(made: list[str], typed: dict[str, Any], expected: dict[str, Any]):
    make(*made)
    assert implied(options("p", typed)) == expected
    assert not expected or mistakes("p", **expected) == []


def test_the_folder_of_the_classes_is_proposed_for_what_is_in_it_and_above_it():
    make("my photos")
    right, is_share = f"data.root={Path('my photos').absolute()}", {"train_dir": ".", "val_fraction": 0.2}
    image = next(Path("my photos/cat").iterdir())
    for typed in ("my photos/cat", str(image)):
        (mistake,) = found(typed, "train", is_share)
        assert [fix.options for fix in mistake.fixes] == [(right,)] and "sort the images" not in str(mistake)
    assert mistakes("my photos", **is_share) == []
    make("Pictures/my photos", "Pictures")
    for folder in Path().glob("**/cat"):
        (folder / "2.jpg").write_bytes(b"another image")
    source = open_source(options("Pictures", is_share), 0)
    right = "set `'data.root=Pictures/my photos'` if its folders, cat, dog, are the classes"
    assert [note for note in source.notes if right in note]
    assert not any("are the classes" in note for note in open_source(options("my photos", is_share), 0).notes)


@pytest.mark.parametrize(
    ("first", "second", "is_said", "is_doubtful"),
    [
        ({"photos": ["cat", "dog"]}, {"old": ["ant", "bee"]}, True, True),
        ({"photos": ["cat", "dog"]}, {"old": ["cat", "dog"]}, True, True),  # by its name
        ({"mine": ["cat", "dog", "emu"]}, {"old": [""]}, True, True),
        ({"mine": ["", "ant", "bee", "cat", "dog", "emu", "fox", "gnu"]}, {"old": [""]}, True, True),  # some beside
        ({"cat": ["2020", "2021"]}, {"dog": ["2021", "2022"]}, True, False),
        ({"cat": ["2020", "2021"]}, {"dog": ["2020"]}, True, False),
        ({"cat": ["2020"]}, {"dog": [""]}, False, False),
    ],
)
def test_classes_that_are_hardly_those_of_a_person_are_told_from_nested_ones(
    first: dict[str, list[str]], second: dict[str, list[str]], is_said: bool, is_doubtful: bool
):
    """Folders of years or places are in several classes; those of a folder above the classes are in none of the
    others."""
    for number, (name, inner) in enumerate([*first.items(), *second.items()]):
        make(f"p/{name}", classes=tuple(inner))
        (Path("p") / name / inner[0] / f"{number}.jpg").write_bytes(bytes([number]))
    share = implied(options("p", {}))
    assert share and mistakes("p", **share) == []
    source = open_source(options("p", share), 0)
    assert any(f"set data.root=p/{next(iter(first))} if its folders" in note for note in source.notes) == is_said
    assert (source.wrong_root is not None) == is_doubtful
    assert not source.wrong_root or str(source.wrong_root) in source.notes


@pytest.mark.parametrize(
    ("beside", "fix"),
    [
        (["test"], ["data.root=p/photos"]),
        (["TEST", "copy of photos"], ["data.root=p/photos"]),
        (["photos_backup"], ["data.root=p/photos"]),
        (["photos - Copy", "papers"], ["data.root=p/photos"]),
        (["valid", "backup"], ["data.train_dir=photos"]),
        (["Test", "pictures"], []),  # which of the two is meant?
    ],
)
@pytest.mark.parametrize("verb", ["train", "check", "relabel"])
def test_the_only_folder_that_can_hold_the_classes_is_named(beside: list[str], fix: list[str], verb: str):
    """Whatever is beside it: splits, copies, folders without images. Any other folder with images may be a class."""
    make("p/photos", *(f"p/{name}" for name in beside if name != "papers"))
    (Path("p") / "papers").mkdir()
    (mistake,) = found("p", verb, implied(options("p", {})))
    assert [*mistake.fixes[0].options] == (fix or ["data.root=p/photos"])
    assert (corrected(["data.root=p"], [mistake]) is not None) == bool(fix)
    if fix:
        keys = dict([fix[0].removeprefix("data.").split("=")])
        root = keys.pop("root", "p")
        assert mistakes(root, verb, **keys, **implied(options(root, keys))) == []


@pytest.mark.parametrize(("other", "is_class"), [("wild", True), ("backup", True), ("backup", False)])
def test_what_may_be_a_class_is_one(other: str, is_class: bool):
    """A class may have folders of years, and any folder is one if that is typed."""
    make("p/tame", f"p/{other}", classes=("2020", "2021"))
    if is_class:
        Path(f"p/{other}/2022").mkdir()
        Path(f"p/{other}/2022/1.jpg").touch()
    share = {"train_dir": ".", "val_fraction": 0.2}
    assert (implied(options("p", {})) == share) == is_class
    assert mistakes("p", **share) == []


@pytest.mark.parametrize("name", ["@eaDir", "$RECYCLE.BIN", ".thumbnails"])
def test_folders_that_systems_make_are_no_classes(name: str):
    make("p/train", "p/val")
    make("p/train", classes=(name,))
    make("p/train/cat", classes=(name,))
    assert mistakes("p") == [], "as a class of train it would have no counterpart"
    make("q/train", "q/val", f"q/{name}")
    assert folders("q") == ("q/train", "q/val")


@pytest.mark.parametrize("empty", [False, True])
def test_a_class_may_lack_validation_images(empty: bool):
    make("p/train", "p/val")
    Path("p/val/dog/1.jpg").unlink()
    if not empty:
        Path("p/val/dog").rmdir()
    assert mistakes("p") == mistakes("p", "evaluate") == []
