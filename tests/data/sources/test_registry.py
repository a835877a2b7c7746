import os
import pickle
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import write_images
from PIL import Image

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.decode import UnreadableImage
from imagenet_ddp.data.sources.base import Images, Names, Source
from imagenet_ddp.data.sources.files import FileImages, list_images
from imagenet_ddp.data.sources.imagenet import class_labels
from imagenet_ddp.data.sources.registry import check_classes, open_source
from imagenet_ddp.data.sources.split import split_validation
from imagenet_ddp.data.sources.stl10 import Stl10Images
from imagenet_ddp.errors import ConfigError


def keys(root: Path | None, name: str = "imagefolder", **more: Any) -> dict[str, Any]:
    return {**asdict(DataConfig()), "name": name, "root": None if root is None else str(root), **more}


def names(images: Images | None) -> list[str]:
    assert isinstance(images, FileImages)
    return [os.path.relpath(images.path(index), images.folder) for index in range(len(images))]


def test_folders_become_classes_and_splits(tree: Path):
    source = open_source(keys(tree), 0, {})
    assert source.classes == source.labels == ["cat", "dog", "owl"]
    assert source.train is not None
    assert source.val is not None
    assert (len(source.train), len(source.val)) == (29, 11)
    assert source.train.targets.tolist() == [0] * 10 + [1] * 10 + [2] * 9
    assert source.train.targets.dtype == np.int64
    assert names(source.train)[10] == "dog/000.jpg"
    image = source.train.read(10)
    assert (image.shape, image.dtype) == ((3, 40, 40), torch.uint8)


def test_evaluation_needs_no_training_images(tmp_path: Path):
    write_images(tmp_path / "val", {"cat": 1, "dog": 2})
    source = open_source(keys(tmp_path), 0, {}, verb="evaluate")
    assert source.train is None
    assert source.val is not None
    assert (source.classes, len(source.val)) == (["cat", "dog"], 3)


def test_split_folders_may_have_other_names(tmp_path: Path):
    write_images(tmp_path / "Training Set", {"cat": 2})
    write_images(tmp_path / "elsewhere" / "Val", {"cat": 1})
    data = keys(tmp_path, train_dir="Training Set", val_dir=str(tmp_path / "elsewhere" / "Val"))
    source = open_source(data, 0, {})
    assert source.train is not None
    assert source.val is not None
    assert (len(source.train), len(source.val)) == (2, 1)


def test_only_images_count_hidden_ones_do_not_and_nested_ones_do(tmp_path: Path):
    write_images(tmp_path / "train" / "cat", {"deep": 2, ".cache": 3})
    write_images(tmp_path / "val", {"cat": 1})
    (tmp_path / "train" / "cat" / "._000.jpg").write_bytes(b"resource fork")
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "train" / ".hidden").mkdir()
    found = list_images(tmp_path / "train", ["cat"])
    assert names(found) == ["cat/deep/000.jpg", "cat/deep/001.jpg"]
    assert open_source(keys(tmp_path), 0, {}).classes == ["cat"]


def test_no_image_at_all_is_said(tmp_path: Path):
    write_images(tmp_path / "train", {"cat": 1, "dog": 1})
    with pytest.raises(ConfigError, match="validation images, but has none"):
        open_source(keys(tmp_path, val_fraction=0.5), 0, {})


def test_links_in_circles_pipes_and_links_upwards_are_passed_by(tmp_path: Path):
    write_images(tmp_path / "train", {"cat": 2})
    (tmp_path / "train/cat/up").symlink_to(tmp_path / "train", target_is_directory=True)
    (tmp_path / "train/cat/self").symlink_to("self")
    os.mkfifo(tmp_path / "train/cat/pipe.jpg")
    assert names(list_images(tmp_path / "train", ["cat"])) == ["cat/000.jpg", "cat/001.jpg"]


def test_a_class_may_lack_validation_images(tmp_path: Path):
    write_images(tmp_path / "train", {"cat": 2, "dog": 2})
    write_images(tmp_path / "val", {"dog": 1})
    source = open_source(keys(tmp_path), 0, {})
    assert source.val is not None
    assert source.val.targets.tolist() == [1]


def test_no_validation_image_is_left_out_for_its_class(tmp_path: Path):
    write_images(tmp_path / "train", {"cat": 2, "owl": 2})
    write_images(tmp_path / "val", {"cat": 1, "dog": 1, "owl": 1})
    with pytest.raises(ConfigError, match="must also be a class of train, but 1 of 3 is not: dog"):
        open_source(keys(tmp_path), 0, {})


def test_imagenets_folders_get_names_people_read(tmp_path: Path):
    for split in ("train", "val"):
        write_images(tmp_path / split, {"n01440764": 1, "n15075141": 1, "n99999999": 1})
    source = open_source(keys(tmp_path, "imagenet"), 0, {})
    assert source.classes == ["n01440764", "n15075141", "n99999999"]
    assert source.labels == ["tench", "toilet tissue", "n99999999"]


def test_the_table_of_imagenets_classes_is_whole():
    from torchvision.models import ResNet18_Weights

    labels = class_labels()
    assert len(labels) == 1000
    assert list(labels) == sorted(labels)
    assert labels["n01440764"] == "tench"
    assert list(labels.values()) == ResNet18_Weights.DEFAULT.meta["categories"]


def test_the_names_are_those_of_real_imagenet_folders(shared_data: Path):
    folder = shared_data / "tiny10"
    source = open_source(keys(folder, "imagenet"), 0, {})
    assert len(source.labels) == 10
    assert not any(label.startswith("n0") for label in source.labels)


@pytest.fixture
def uneven(tmp_path: Path) -> FileImages:
    """40, 7, 2 and 1 images; nothing is read, so the files are empty."""
    for name, count in {"a": 40, "b": 7, "c": 2, "d": 1}.items():
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / f"{number:02}.jpg").touch()
    return list_images(tmp_path, ["a", "b", "c", "d"])


def test_a_share_of_each_class_is_split_off(uneven: FileImages):
    train, val, _ = split_validation(uneven, 0.2, seed=0)
    assert Counter(val.targets.tolist()) == {0: 8, 1: 1, 2: 1}
    assert Counter(train.targets.tolist()) == {0: 32, 1: 6, 2: 1, 3: 1}
    assert not set(names(train)) & set(names(val))
    assert sorted(names(train) + names(val)) == sorted(names(uneven))
    for images in (train, val):
        assert [name[0] for name in names(images)] == ["abcd"[target] for target in images.targets]


def test_a_large_share_leaves_a_training_image_in_each_class(uneven: FileImages):
    train, *_ = split_validation(uneven, 0.99, seed=0)
    assert set(train.targets.tolist()) == {0, 1, 2, 3}


def test_the_split_hangs_on_the_seed_alone(uneven: FileImages):
    first, again, other = (names(split_validation(uneven, 0.2, seed)[1]) for seed in (0, 0, 1))
    assert first == again != other
    assert first != [f"a/{number:02}.jpg" for number in range(8)]  # not simply the first ones


@pytest.mark.parametrize(("fraction", "num_folds"), [(0.2, 5), (0.3, 3), (0.5, 2), (0.45, 2)])
def test_the_folds_hold_out_each_image_once(uneven: FileImages, fraction: float, num_folds: int):
    splits = [split_validation(uneven, fraction, 0, fold) for fold in range(num_folds)]
    assert sorted(name for _, val, _ in splits for name in names(val)) == sorted(names(uneven))
    for train, val, _ in splits:
        assert sorted(names(train) + names(val)) == sorted(names(uneven))
    assert names(splits[0][1]) == names(split_validation(uneven, fraction, 0)[1])
    if fraction == 0.2:  # of 40, 7, 2 and 1 images
        counts = [Counter(val.targets.tolist()) for _, val, _ in splits]
        assert counts[0] == {0: 8, 1: 1, 2: 1}
        assert [count[0] for count in counts] == [8] * 5
        assert sorted(count[1] for count in counts[1:]) == [1, 1, 2, 2]
        assert sorted(count[2] for count in counts[1:]) == [0, 0, 0, 1]


def test_images_that_do_not_divide_are_spread_over_the_folds(tmp_path: Path):
    for name in "abcdefgh":  # 3 images each: one in the first fold, two for four others
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.jpg").touch()
    images = list_images(tmp_path, list("abcdefgh"))
    assert [len(split_validation(images, 0.2, 0, fold)[1]) for fold in range(5)] == [8, 4, 4, 4, 4]


def test_val_fold_chooses_the_images(tmp_path: Path):
    write_images(tmp_path / "train", {"cat": 10, "dog": 10})
    first, third = (open_source(keys(tmp_path, val_fraction=0.2, val_fold=fold), 3, {}) for fold in (0, 2))
    assert first.val is not None and third.val is not None
    assert Counter(third.val.targets.tolist()) == {0: 2, 1: 2}
    assert not set(names(first.val)) & set(names(third.val))


def test_val_fraction_splits_the_training_folder(tmp_path: Path):
    write_images(tmp_path / "train", {"cat": 10, "dog": 10})
    for need_train in (True, False):
        source = open_source(keys(tmp_path, val_fraction=0.2), 3, {}, verb="train" if need_train else "evaluate")
        assert source.val is not None
        assert Counter(source.val.targets.tolist()) == {0: 2, 1: 2}
        assert names(source.val) == names(split_validation(list_images(tmp_path / "train", ["cat", "dog"]), 0.2, 3)[1])


def test_paths_of_any_name_survive(tmp_path: Path):
    odd = ["cat/näme_ünicode_图.jpg", "cat/b.jpg", "cat/name with spaces (1).jpg", os.fsdecode(b"cat/\xff\xfe.jpg")]
    images = FileImages(tmp_path, Names.of(odd), np.arange(4))
    assert [images.path(index) for index in range(4)] == [str(tmp_path / name) for name in odd]
    part = images.subset(np.array([3, 0]))
    assert [part.path(index) for index in range(2)] == [str(tmp_path / odd[3]), str(tmp_path / odd[0])]
    assert part.targets.tolist() == [3, 0]
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (5, 4)).save(tmp_path / odd[0])
    assert part.read(1).shape == (3, 4, 5)


def test_an_unreadable_file_is_named(tmp_path: Path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.jpg").write_text("<html>")
    with pytest.raises(UnreadableImage, match=rf"{tmp_path}/cat/a\.jpg cannot be read as an image: it is not an"):
        list_images(tmp_path, ["cat"]).read(0)


def test_images_go_pickled_to_a_loader_process(tree: Path):
    images = open_source(keys(tree), 0, {}).train
    copy = pickle.loads(pickle.dumps(images))
    assert [copy.path(index) for index in range(len(copy))] == [images.path(i) for i in range(len(images))]  # type: ignore
    assert torch.equal(copy.read(28), images.read(28))  # type: ignore
    names = Names.of(f"n01440764/n01440764_{i}.JPEG" for i in range(10_000))
    many = FileImages(Path("/data"), names, np.zeros(10_000, np.int64))
    assert len(pickle.dumps(many)) < 10_000 * (30 + 8 + 8)  # path, end, target: no object per image


def test_the_generated_images_are_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from imagenet_ddp.data.sources import shapes

    monkeypatch.setattr(shapes, "NUM_PER_CLASS", {"train": 2, "val": 1})
    source = open_source(keys(None, "shapes"), 5, {"XDG_CACHE_HOME": str(tmp_path)})
    assert source.train is not None
    assert source.val is not None
    assert (len(source.classes), len(source.train), len(source.val)) == (10, 20, 10)
    assert "seed5" in source.train.path(0)


def test_stl10_is_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, classes = tmp_path / "data/stl10_binary", [f"class{number}" for number in range(10)]
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)  # where root=None is data/
    for split, count in (("train", 20), ("test", 10)):
        np.arange(count, dtype=np.uint8).repeat(3 * 96 * 96).tofile(folder / f"{split}_X.bin")
        (np.arange(count, dtype=np.uint8) % 10 + 1).tofile(folder / f"{split}_y.bin")
    (folder / "class_names.txt").write_text("\n".join(classes))
    (folder / "fold_indices.txt").write_text("3 5 7\n" * 10)
    source = open_source(keys(tmp_path / "data", "stl10", download=False, fold=0), 0, {})
    assert isinstance(source.train, Stl10Images)
    assert isinstance(source.val, Stl10Images)
    assert (source.classes, len(source.train), len(source.val)) == (classes, 3, 10)
    assert source.train.targets.tolist() == [3, 5, 7]
    assert "20 train images; the official STL-10 has 5000" in source.notes[0]
    copy = pickle.loads(pickle.dumps(source.train))
    for images in (source.train, copy):
        assert torch.equal(images.read(1), torch.full((3, 96, 96), 5, dtype=torch.uint8))
        assert images.path(1) == "train_X.bin[5]"
    assert open_source(keys(None, "stl10", download=False), 0, {}, verb="evaluate").train is None


class MadeSource(Source):
    """What somebody's own data._target_ may name."""

    def __init__(self, size: int, root: str = "nowhere"):
        super().__init__([root, str(size)], None, None)


def test_a_target_gives_a_source_of_ones_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "own_data", sys.modules[__name__])
    data = keys(None, "own", _target_="own_data.MadeSource", args={"size": 4})
    assert open_source(data, 0, {}).classes == ["nowhere", "4"]
    assert open_source({**data, "root": "/here"}, 0, {}).classes == ["/here", "4"]
    with pytest.raises(ConfigError, match=r"own_data\.keys must return a Source, but returned a dict"):
        open_source({**data, "_target_": "own_data.keys", "args": {"root": None}}, 0, {})


def test_classes_are_matched_by_name():
    source = Source(["dog", "cat"], None, None)
    assert check_classes(source, ["ant", "cat", "dog"], "a.ckpt").tolist() == [2, 1]


def test_classes_a_checkpoint_does_not_know_are_named():
    source = Source(["cat", *(f"new{number}" for number in range(7))], None, None)
    with pytest.raises(ConfigError) as caught:
        check_classes(source, ["cat", "dog"], "a.ckpt")
    [text] = caught.value.mistakes
    assert text.startswith("the data's classes must be among the 2 classes of a.ckpt, but 7 are not: new0, new1,")
    assert "new4 and 2 more" in text
    assert "new5" not in text
    assert "Hint: set data.root=FOLDER" in text
