"""Pictures of evaluated images: those of the rows, and of no other code than this program's."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.fake_predictions import random_probabilities, write_evaluation
from PIL import Image

from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.sources.shard_cache import ShardError
from imagenet_ddp.report.pictures import read_pictures
from imagenet_ddp.report.predictions import read

CLASSES = ["a", "b", "c"]


def data(root: Path) -> dict[str, object]:
    return {
        "name": "imagefolder", "_target_": None, "args": {}, "root": str(root), "train_dir": "train", "val_dir": "val",
        "val_fraction": None, "val_fold": 0, "decoder": "auto", "exif_orientation": False,
    }  # fmt: skip


def test_no_image_under_the_name_of_another(tmp_path: Path):
    paths = [tmp_path / f"val/{name}/{number}.png" for name in CLASSES for number in range(3)]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (25 * number, 0, 0)).save(path)
    target = np.repeat(np.arange(3), 3)
    names = [str(path) for path in paths]
    folder = write_evaluation(
        tmp_path / "e", random_probabilities(target, 3), target, CLASSES, paths=names, data=data(tmp_path)
    )
    found = read(folder)
    assert len(read_pictures(found, range(9), []).thumbnails) == 9
    # relabelled: as many images, and the first and the last are where they were
    paths[3].rename(tmp_path / "val/a/0a.png")
    pictures = read_pictures(found, range(9), [])
    assert not pictures.thumbnails
    assert pictures.reason == (
        f"the data must be that of the evaluation in {folder}, but image 1 is no longer {paths[1]}. "
        f"Hint: run `rm -r {folder}`, then run report again to evaluate the run."
    )


def test_images_that_can_no_longer_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The report is written without pictures."""
    (tmp_path / "val/a").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(path := tmp_path / "val/a/0.png")
    folder = write_evaluation(
        tmp_path / "e", np.array([[0.9, 0.1]]), np.array([0]), ["a", "b"], paths=[str(path)], data=data(tmp_path)
    )

    def fail(self: FileImages, index: int) -> None:
        raise ShardError("the shard cannot be fetched")

    monkeypatch.setattr(FileImages, "open", fail)
    pictures = read_pictures(read(folder), [0], [])
    assert (pictures.thumbnails, pictures.reason) == ({}, "the shard cannot be fetched")


def test_a_folder_from_anybody_calls_no_code(tmp_path: Path):
    (tmp_path / "from").write_text("called")
    arguments = {"src": str(tmp_path / "from"), "dst": str(tmp_path / "to")}
    own = {**data(tmp_path), "_target_": "shutil.copyfile", "root": None, "args": arguments}
    found = read(write_evaluation(tmp_path / "e", np.array([[0.9, 0.1]]), np.array([0]), ["a", "b"], data=own))
    pictures = read_pictures(found, [0], [0])
    assert pictures.reason.endswith("outside this program, or an address, under data; report does not use it.")
    assert not (tmp_path / "to").exists()
    (tmp_path / "val/a").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(path := tmp_path / "val/a/0.png")
    folder = write_evaluation(
        tmp_path / "net", np.array([[0.9, 0.1]]), np.array([0]), ["a", "b"], paths=[str(path)], data=data(tmp_path)
    )
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["model"] |= {"_target_": "shutil.copyfile", "args": arguments}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    pictures = read_pictures(read(folder), [0], [0])
    assert len(pictures.thumbnails) == 1
    assert pictures.reason_maps.endswith("under model; report does not use it.")
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    "part",
    [
        {"data": [1]}, {"data": {"name": {"a": 1}}}, {"data": {"name": "imagefolder", "root": [1]}}, {"loss": None},
        {"data": {"name": "imagefolder", "root": ".", "val_dir": None, "image_size": "${a}"}},
        {"model": {"name": -1.5}}, {"model": {"name": "resnet18", "args": 3, "weights": -1.5}}, {"trainer": 3},
        {"cluster": {"num_threads": [1]}},
    ],
)  # fmt: skip
def test_options_of_any_type_are_a_reason(part: dict[str, object], tmp_path: Path):
    (tmp_path / "val/a").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(path := tmp_path / "val/a/0.png")
    folder = write_evaluation(
        tmp_path / "e", np.array([[0.9, 0.1]]), np.array([0]), ["a", "b"], paths=[str(path)], data=data(tmp_path)
    )
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | part))
    pictures = read_pictures(read(folder), [0], [0])
    assert pictures.reason or pictures.reason_maps
