import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import write_images

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data import Images, Source
from imagenet_ddp.data.sources.base import Names
from imagenet_ddp.data.sources.datasets import open_datasets
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.sources.imagenet import check_classes
from imagenet_ddp.data.sources.registry import open_source, options_for
from imagenet_ddp.errors import ConfigError


def keys(root: Path | None, name: str = "imagefolder", **more: Any) -> DataConfig:
    return DataConfig.of(name=name, root=None if root is None else str(root), **more)


def test_no_image_at_all_is_said(tmp_path: Path):
    """A larger share would hold out none either."""
    write_images(tmp_path / "train", {"cat": 1, "dog": 1})
    for share in (0.2, 0.9):
        with pytest.raises(ConfigError, match=r"but no class has\. Hint: add images to each class"):
            open_source(keys(tmp_path, val_fraction=share), 0)


class MadeSource(Source):
    """What somebody's own data._target_ may name."""

    def __init__(self, size: int, root: str = "nowhere"):
        super().__init__([root, str(size)], None, None)


def test_a_target_gives_a_source_of_ones_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "own_data", sys.modules[__name__])
    data = keys(None, "own", _target_="own_data.MadeSource", args={"size": 4})
    assert open_source(data, 0).classes == ["nowhere", "4"]
    assert open_source(replace(data, root="/here"), 0).classes == ["/here", "4"]
    with pytest.raises(
        ConfigError, match=r"own_data\.keys must return a Source, or a pair of torch Datasets, got ImageFolderData"
    ):
        open_source(replace(data, _target_="own_data.keys", args={"root": None}), 0)


class WeightedSource(Source):
    def __init__(self):
        images = FileImages(Path("/"), Names.of(["1.jpg", "2.jpg", "3.jpg"]), np.zeros(3, np.int64))
        images.weights = np.ones((3, 1), np.float32)
        super().__init__(["a"], images, None)


def test_weights_of_another_shape_are_refused(monkeypatch: pytest.MonkeyPatch):
    """Multiplied by the losses of a batch, they would make a matrix, whose mean is no one's loss."""
    monkeypatch.setitem(sys.modules, "own_data", sys.modules[__name__])
    with pytest.raises(ConfigError, match=r"must have shape \(3,\), one weight per image, got \(3, 1\)"):
        open_source(keys(None, "own", _target_="own_data.WeightedSource"), 0)


class LabelledSource(Source):
    def __init__(self, targets: Any, val: Any = (0, 1)):
        self.given = Images(), Images()
        for images, own in zip(self.given, (targets, val), strict=True):
            images.targets = own
        super().__init__(["cat", "dog", "owl"], *self.given)


@pytest.mark.parametrize(
    ("targets", "count", "first"),
    [
        (np.array([0, 1, 3, 2, 7]), "2 images of 5 have", "number 2, image 2: 3 (int64)"),
        (np.array([0, 1, -1], np.int8), "1 image of 3 has", "number 2, image 2: -1 (int8)"),
        (np.array([0, 1, np.nan, 2]), "1 image of 4 has", "number 2, image 2: nan (float64)"),
        (np.array([0.0, 1.0]), "2 images of 2 have", "number 0, image 0: 0.0 (float64)"),
        (np.array([0.0, 1.5, 1.0]), "1 image of 3 has", "number 1, image 1: 1.5 (float64)"),
        (np.array(["cat", "dog"]), "2 images of 2 have", "number 0, image 0: cat (<U3)"),
        (np.eye(3, dtype=int), "3 images of 3 have", "number 0, image 0: [1 0 0] (int64)"),
        ([0, 5], "1 image of 2 has", "number 1, image 1: 5 (int64)"),
    ],
)
def test_a_label_that_is_no_class_is_named(monkeypatch: pytest.MonkeyPatch, targets: Any, count: str, first: str):
    monkeypatch.setitem(sys.modules, "own_data", sys.modules[__name__])
    data = keys(None, "own", _target_="own_data.LabelledSource", args={"targets": targets, "val": np.array([9])})
    with pytest.raises(ConfigError) as caught:
        open_source(data, 0)
    mistake, of_val = map(str, caught.value.mistakes)
    assert mistake.startswith("data._target_=own_data.LabelledSource: the targets of the training images must be inte")
    assert f"from 0 to 2 (positions in Source.classes), but {count} another, the first of them {first}. Hint" in mistake
    assert "of the validation images" in of_val


@pytest.mark.parametrize("targets", [np.array([2, 0, 1], np.uint16), [2, 0, 1], torch.tensor([2, 0, 1])])
def test_labels_of_any_integer_type_are_used(monkeypatch: pytest.MonkeyPatch, targets: Any):
    monkeypatch.setitem(sys.modules, "own_data", sys.modules[__name__])
    source = open_source(keys(None, "own", _target_="own_data.LabelledSource", args={"targets": targets}), 0)
    assert source.train is not None
    assert (source.train.targets.tolist(), source.train.targets.dtype) == ([2, 0, 1], np.int64)
    assert source.notes == ["There are no validation images of 1 class: owl."]


def test_classes_a_checkpoint_does_not_know_are_named():
    with pytest.raises(ConfigError, match=r"the 2 classes of a\.ckpt, but 1 is not: new"):
        check_classes(Source(["cat", "new"], None, None), ["cat", "dog"], "a.ckpt")
    source = Source(["cat", *(f"new{number}" for number in range(7))], None, None)
    with pytest.raises(ConfigError) as caught:
        check_classes(source, ["cat", "dog"], "a.ckpt")
    [text] = map(str, caught.value.mistakes)
    assert text.startswith("the data's classes must be among the 2 classes of a.ckpt, but 7 are not: new0, new1,")
    assert "new4 and 2 more" in text
    assert "new5" not in text
    assert "Hint: set data.root=FOLDER" in text


PIXELS = torch.arange(3 * 4 * 5, dtype=torch.uint8).view(3, 4, 5)


class Subclass(Images):
    targets = np.array([0])

    def read(self, index: int) -> torch.Tensor:
        return PIXELS


def test_reading_is_all_that_a_source_must_do():
    found = Source(["cat"], Subclass(), None).train
    for each in (found, pickle.loads(pickle.dumps(found))):
        assert isinstance(each, Images) and len(each) == 1
        assert torch.equal(each.read(0), PIXELS)
        assert np.array_equal(each.open(0).region(1, 2, 3, 2), PIXELS.permute(1, 2, 0)[1:4, 2:4])
        assert (each.path(0), each.location, each.is_encoded) == ("image 0", "", False)
        assert each.encoded(0) is each.order(0, 1) is each.verify(0) is None


@pytest.mark.parametrize(
    ("made", "typed"),
    [
        ([], ["data=imagefolder", "data.root={}"]),
        (["train/cat/", "val/cat/"], ["data=imagefolder", "data.root={}"]),
        (["train/cat/"], ["data=imagefolder", "data.root={}", "data.val_fraction=0.1"]),
        (["cat/", "dog/"], ["data=imagefolder", "data.root={}"]),
        (["Data/CLS-LOC/train/"], ["data=imagenet", "data.root={}/Data/CLS-LOC"]),
        (["packed.json"], ["data=packed", "data.root={}"]),
        (["stl10_binary/"], ["data=stl10", "data.root={}"]),
    ],
)
def test_options_for(made: list[str], typed: list[str], tmp_path: Path):
    for path in made:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).mkdir() if path.endswith("/") else (tmp_path / path).touch()
    assert options_for(str(tmp_path)) == [option.replace("{}", str(tmp_path)) for option in typed]


def test_wordnet_ids(tmp_path: Path):
    for number in range(900):
        (tmp_path / f"whole/train/n{number:08}").mkdir(parents=True)
    (tmp_path / "whole/val").mkdir()
    (tmp_path / "ten/train/n00000000").mkdir(parents=True)
    (tmp_path / "ten/val").mkdir()
    assert options_for(str(tmp_path / "whole"))[0] == "data=imagenet"
    assert options_for(str(tmp_path / "ten"))[0] == "data=imagefolder"
    assert options_for(str(tmp_path / "ten"), "imagenet")[0] == "data=imagenet"  # the user's own choice is kept


def test_files_and_addresses():
    assert options_for("pets/labels.csv", "imagenet") == ["data=table", "data.root=pets/labels.csv"]
    assert options_for("s3://bucket/pets") == ["data=streamed", "data.root=s3://bucket/pets"]
    assert options_for("gone", "imagenet") == ["data=imagenet", "data.root=gone"]


class Changed(torch.utils.data.Dataset[Any]):
    """As torchvision's datasets with a target_transform, of which `targets` and `classes` know nothing."""

    classes = ("a", "b", "c", "d")
    targets = (0, 1, 2, 3)
    target_transform = staticmethod(lambda label: label // 2)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return np.zeros((8, 8, 3), np.uint8), self.target_transform(self.targets[index])


@pytest.mark.parametrize("train", [Changed(), torch.utils.data.Subset(Changed(), range(4))], ids=["whole", "subset"])
def test_the_labels_of_a_dataset_are_those_of_its_pairs(train: Any):
    source = open_datasets((train, Changed()), "data._target_=x")
    assert source.train is not None and source.train.targets.tolist() == [0, 0, 1, 1] and source.classes == ["0", "1"]
