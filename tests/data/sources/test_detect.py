from pathlib import Path

import pytest

from imagenet_ddp.data.sources.registry import name_of, options_for


@pytest.mark.parametrize(
    ("made", "typed"),
    [
        ([], ["data=imagefolder", "data.root={}"]),
        (["train/cat/", "val/cat/"], ["data=imagefolder", "data.root={}"]),
        (["train/n01440764/", "val/n01440764/"], ["data=imagefolder", "data.root={}"]),
        (["train/cat/"], ["data=imagefolder", "data.root={}", "data.val_fraction=0.1"]),
        (["cat/", "dog/"], ["data=imagefolder", "data.root={}"]),
        (["Data/CLS-LOC/train/"], ["data=imagenet", "data.root={}/Data/CLS-LOC"]),
        (["packed.json"], ["data=packed", "data.root={}"]),
        (["labels.csv", "1.jpg"], ["data=imagefolder", "data.root={}"]),
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


def test_files_that_are_tables():
    assert options_for("pets/labels.csv", "imagenet") == ["data=table", "data.root=pets/labels.csv"]
    assert options_for("labels.Parquet") == ["data=table", "data.root=labels.Parquet"]
    assert options_for("labels.zip") == ["data=imagefolder", "data.root=labels.zip"]


def test_elsewhere():
    assert options_for("s3://bucket/pets") == ["data=streamed", "data.root=s3://bucket/pets"]
    assert options_for("gone", "imagenet") == ["data=imagenet", "data.root=gone"]


@pytest.mark.parametrize(
    ("text", "name"),
    [("STL-10", "stl10"), ("ImageNet-1k", "imagenet"), ("imagefolder", "imagefolder"), ("CSV", "table"), ("x", None)],
)
def test_name_of(text: str, name: str | None):
    assert name_of(text) == name
