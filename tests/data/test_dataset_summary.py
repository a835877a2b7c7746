"""How images lie, in the states in which people have them; the lines of the docs are typed here."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import write_images

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.dataset_summary import DatasetSummary, read_samples, summarise
from imagenet_ddp.data.sources import imagenet as imagenet_layout

WNIDS = ["n01440764", "n01443537", "n01484850"]


def keys(root: Path | None, name: str = "imagefolder", **more: Any) -> DataConfig:
    return DataConfig.of(name=name, root=str(root) if root else None, **more)


def look(root: Path | None, name: str = "imagefolder", **more: Any) -> DatasetSummary:
    return summarise(keys(root, name, **more), 0)


@pytest.fixture
def imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ImageNet of three classes, whole: 4 training images and 2 validation images of each."""
    monkeypatch.setattr(imagenet_layout, "NUM_IMAGES", {"train": (12, 3), "val": (6, 2)})
    monkeypatch.setattr(imagenet_layout, "NUM_CLASSES", 3)
    monkeypatch.setattr(imagenet_layout, "class_labels", lambda: dict.fromkeys(WNIDS, "fish"))
    write_images(tmp_path / "train", dict.fromkeys(WNIDS, 4))
    write_images(tmp_path / "val", dict.fromkeys(WNIDS, 2))
    return tmp_path


def test_an_uneven_and_a_swapped_set_are_noted(tmp_path: Path):
    write_images(tmp_path / "train", {"cat": 2, "dog": 30})
    write_images(tmp_path / "val", {"cat": 20, "dog": 20})
    notes = look(tmp_path).notes
    assert notes[0] == "train is imbalanced: 30 images of dog, 2 of cat" and "swapped?" in notes[1]


def test_imagenet_with_images_missing(imagenet: Path):
    for path in list((imagenet / "train" / WNIDS[1]).iterdir())[:2]:
        path.unlink()
    (mistake,) = map(str, look(imagenet, "imagenet").mistakes)
    assert "expects 12 images of 3 classes in train" in mistake
    assert "has 10 of 3; 1 class with fewer than 3 images: n01443537 (2). Hint: " in mistake


def test_samples_are_read_from_both_splits(tree: Path):
    reading = read_samples(look(tree))
    assert reading.num_read == 6 and reading.mistakes == [] and reading.images_per_s > 0


def test_what_cannot_be_read_is_named(tree: Path, tmp_path: Path):
    shutil.copytree(tree, tmp_path / "t")
    for path in (tmp_path / "t" / "train" / "cat").iterdir():
        path.write_bytes(b"GIF89a")
    for path in (tmp_path / "t" / "val" / "dog").iterdir():
        path.unlink()
        path.symlink_to("nowhere")
    broken, missing = read_samples(look(tmp_path / "t")).mistakes
    assert "train/cat" in broken and ". Hint: copy that file again" in broken
    assert "val/dog" in missing and "No such file or directory" in missing
