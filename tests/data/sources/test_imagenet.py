import json
from pathlib import Path

import numpy as np
import pytest
from conftest import write_images

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.sources.base import Images, Source
from imagenet_ddp.data.sources.imagenet import check_classes, class_labels, reassessed_labels
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.errors import ConfigError

PATHS = [f"val/n01440764/ILSVRC2012_val_{number:08}.JPEG" for number in (3, 1, 2)]


def test_reassessed_labels_are_found_by_the_number_of_the_image(tmp_path: Path):
    (tmp_path / "real.json").write_text(json.dumps([[0, 999], [], [1]]))
    found = reassessed_labels(tmp_path / "real.json", PATHS)
    assert found == [{"n01443537"}, {"n01440764", "n15075141"}, set()]


@pytest.mark.parametrize(
    "content", [b"[\nno JSON", b'{"0": [1]}', b"[]", b"[[1], 2, 3]", b"[[0], [1000]]", b"[[-1]]"], ids=range(6)
)
def test_another_file_is_refused(content: bytes, tmp_path: Path):
    (tmp_path / "real.json").write_bytes(content)
    for file in (tmp_path / "real.json", tmp_path / "gone.json"):
        with pytest.raises(ConfigError, match=rf"from 0 to 999 for each image, but {file} is not\. Hint: download"):
            reassessed_labels(file, PATHS)


@pytest.mark.parametrize("path", ["val/n01440764/0001.jpg", "val/n01440764/ILSVRC2012_val_00000004.JPEG"])
def test_other_images_are_refused(path: str, tmp_path: Path):
    (tmp_path / "real.json").write_text("[[0], [0], [0]]")
    with pytest.raises(ConfigError, match=rf"ILSVRC2012_val_00000001.JPEG to 00000003, got {path}"):
        reassessed_labels(tmp_path / "real.json", [*PATHS, path])


def source_of(classes: list[str]) -> Source:
    images = Images()
    images.targets = np.zeros(0, np.int64)
    return Source(classes, None, images)


def test_numbers_are_classes_of_imagenet_alone():
    """Sorted as text, as folders are: "10" stands before "2"."""
    reverse = [*reversed(class_labels())]
    assert check_classes(source_of(["0", "10", "2", "999"]), list(class_labels()), "x").tolist() == [0, 10, 2, 999]
    assert check_classes(source_of(["0", "10", "2", "999"]), reverse, "x").tolist() == [999, 989, 997, 0]
    assert check_classes(source_of(["n01443537"]), list(class_labels()), "x").tolist() == [1]
    for numbers, classes in (
        (["1000"], list(class_labels())),
        (["1"], list(class_labels())[:999]),
        (["1"], ["a", "b"]),
    ):
        with pytest.raises(ConfigError, match="1 is not"):
            check_classes(source_of(numbers), classes, "x")


def test_imagenets_folders_get_names_people_read(tmp_path: Path):
    from torchvision.models import ResNet18_Weights

    labels = class_labels()
    assert list(labels) == sorted(labels)
    assert list(labels.values()) == ResNet18_Weights.DEFAULT.meta["categories"]
    for split in ("train", "val"):
        write_images(tmp_path / split, {"n01440764": 1, "n99999999": 1})
    source = open_source(DataConfig.of(name="imagenet", root=str(tmp_path)), 0)
    assert (source.classes, source.labels) == (["n01440764", "n99999999"], ["tench", "n99999999"])
