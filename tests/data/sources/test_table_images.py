import csv
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SMALL, Run, write_images
from helpers.image_table import write_table

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.sources.base import Images, Source
from imagenet_ddp.data.sources.files import FileImages
from imagenet_ddp.data.sources.registry import open_source


def opened(root: Path, name: str = "table", need_train: bool = True, **more: Any) -> Source:
    data = DataConfig(name=name, root=str(root), **more)
    return open_source(data, 3, verb="train" if need_train else "evaluate")


def files(images: Images | None) -> list[str]:
    assert isinstance(images, FileImages)
    return [str(Path(images.path(index)).resolve()) for index in range(len(images))]


def assert_same(one: Images | None, other: Images | None) -> None:
    assert one is not None and other is not None
    assert files(one) == files(other)
    assert one.targets.tolist() == other.targets.tolist() and one.targets.dtype == np.int64
    assert one.weights is None


@pytest.mark.parametrize("absolute", [False, True])
def test_the_same_images_as_of_folders(absolute: bool, tmp_path: Path):
    write_images(tmp_path / "train", {"cat": 3, "dog": 4, "owl": 2})
    write_images(tmp_path / "val", {"cat": 1, "dog": 2, "owl": 1})
    source, expected = (
        opened(write_table(tmp_path / "t.csv", tmp_path, absolute=absolute)),
        opened(tmp_path, "imagefolder"),
    )
    assert source.classes == source.labels == expected.classes == ["cat", "dog", "owl"]
    assert_same(source.train, expected.train)
    assert_same(source.val, expected.val)
    assert source.train is not None and expected.train is not None
    assert torch.equal(source.train.read(5), expected.train.read(5))
    assert source.train.encoded(5) == expected.train.encoded(5)
    assert files(pickle.loads(pickle.dumps(source.train))) == files(expected.train)


def test_weights_are_of_the_training_images(tmp_path: Path):
    rows = [f"{number}.jpg,{'ab'[number % 2]},{number + 1}" for number in range(8)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,weight", *rows]))
    source = opened(tmp_path / "t.csv", val_fraction=0.5)
    train, val = source.train, source.val
    assert train is not None and train.weights is not None and val is not None
    assert train.weights.dtype == np.float32
    assert train.weights.tolist() == [int(Path(path).stem) + 1 for path in files(train)]
    assert (len(train), len(val), val.weights) == (4, 4, None)
    low, high, mean = train.weights.min(), train.weights.max(), train.weights.mean()
    assert source.notes[1] == (
        f"The loss of each training image is multiplied by its weight, {low:g} to {high:g}, {mean:.4g} on average."
    )


def test_the_digest_tells_tables_apart(tmp_path: Path):
    head, rows = "path,label,split,weight\n", ["a.jpg,x,train,1\n", "b.jpg,y,train,1\n", "c.jpg,x,val,1\n"]
    others = [
        rows, rows[::-1], [rows[0], rows[1].replace("1", "2"), rows[2]], [rows[0], rows[1].replace("b", "d"), rows[2]],
        [rows[0], rows[1].replace("y", "x"), rows[2], "e.jpg,y,train,1\n"],
    ]  # fmt: skip
    digests = []
    for content in others:
        (tmp_path / "t.csv").write_text(head + "".join(content))
        digests.append(opened(tmp_path / "t.csv").digest)
    assert len(set(digests)) == len(others)
    assert opened(tmp_path / "t.csv").digest == digests[-1]


@pytest.mark.slow
def test_two_ranks_train_by_a_table_with_weights(tree: Path, run: Run, tmp_path: Path):
    table = write_table(tmp_path / "t.csv", tree, absolute=True, weight=lambda path: 3 if "owl" in path.parts else 1)
    options = ["data=table", f"data.root={table}", "data.sampling=balanced", "trainer.devices=2"]
    done = run("train", *SMALL[1:], *options, "hydra.run.dir=weighted")
    assert done.returncode == 0, done.stdout + done.stderr
    log = next((tmp_path / "weighted" / "logs").glob("*0*")).read_text()
    assert "Each class is equally frequent in training." in log
    assert "multiplied by its weight, 1 to 3, 1.621 on average." in log
    with (tmp_path / "weighted" / "metrics.csv").open(newline="") as file:
        val_loss = float(list(csv.DictReader(file))[-1]["val/loss"])
    options = ["data=imagefolder", f"data.root={tree}", "hydra.run.dir=folders"]
    done = run("evaluate", "checkpoint=weighted/checkpoints/last.ckpt", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    evaluation = json.loads((tmp_path / "folders/evaluation.json").read_text())
    assert evaluation["num_val_images"] == 11
    assert evaluation["val/loss"] == pytest.approx(val_loss, abs=1e-5)  # a validation has no weights
