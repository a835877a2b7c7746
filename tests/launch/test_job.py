"""The options of a command: the place of its folder on the line, and what an evaluation takes of a checkpoint."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from imagenet_ddp.cli.check_config import Checked
from imagenet_ddp.cli.overrides import in_folder
from imagenet_ddp.cli.parse import composed
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.evaluate import EvaluateConfig
from imagenet_ddp.config.schema.run import CommonConfig, RunConfig
from imagenet_ddp.config.section import to_plain, typed_config
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.launch.job import _resumed_config
from imagenet_ddp.launch.resume import changes
from imagenet_ddp.launch.stored_config import _other_split, from_checkpoint
from imagenet_ddp.launch.trained_model import use_preprocessing
from imagenet_ddp.mistakes import Mistake, without
from imagenet_ddp.models.weights.facts import Facts
from imagenet_ddp.runs import checkpoint_file


def test_the_folder_stands_beside_the_other_options() -> None:
    """Hydra's parser takes no key=value on both sides of -m."""
    assert in_folder(["-m", "a=1,2"], "hydra.sweep.dir", Path("x")) == ["-m", "hydra.sweep.dir='x'", "a=1,2"]
    assert in_folder(["a=1,2", "-m"], "hydra.sweep.dir", Path("x y")) == ["hydra.sweep.dir='x y'", "a=1,2", "-m"]
    assert in_folder(["hydra.run.dir=old", "a=1"], "hydra.run.dir", Path("new")) == ["hydra.run.dir='new'", "a=1"]
    odd = r"it's a\b \'c"
    assert OverridesParser.create().parse_override(in_folder([], "a", Path(odd))[0]).value() == odd


def test_an_evaluation_takes_all_images_whatever_its_training_took(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {
        "data": {"exif_orientation": False},
        "trainer": {"limit_val_batches": 0, "overfit_batches": 2, "precision": "64-true"},
    }
    names = ("limit_val_batches", "overfit_batches", "precision")
    trainer = _merged(monkeypatch, stored)["trainer"]
    assert [trainer[name] for name in names] == [None, 0.0, "64-true"]
    trainer = _merged(monkeypatch, stored, "trainer.limit_val_batches=3")["trainer"]
    assert trainer["limit_val_batches"] == 3


def test_other_images_are_turned_and_scaled_as_those_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"data": {"name": "imagefolder", "exif_orientation": True, "white_level": 4095.0}}
    assert _merged(monkeypatch, stored)["data"]["white_level"] == 4095
    assert _merged(monkeypatch, stored)["data"]["name"] == "shapes"
    assert _merged(monkeypatch, stored)["data"]["exif_orientation"] is True
    assert _merged(monkeypatch, stored, "data.exif_orientation=false")["data"]["exif_orientation"] is False


def test_an_evaluation_keeps_the_split_of_the_training() -> None:
    """Another seed would choose other images, most of which were trained on."""

    def said(**changed: Any) -> list[Mistake]:
        before = DataConfig.of(name="imagefolder", root="x", val_fraction=0.2, val_fold=1)
        seed = changed.pop("seed", 0)
        return _other_split(before, replace(before, **changed), (0, seed), Path("last.ckpt"))

    assert said() == []
    (mistake,) = said(seed=7)
    assert (mistake.keys, mistake.fixes) == (("seed",), (without("seed"),))
    assert mistake.what.startswith("seed must be 0, as in last.ckpt,")
    assert len(said(seed=7, val_fraction=0.3, val_fold=0)) == 3
    assert len(said(seed=7, root="./x/")) == len(said(seed=7, root=str(Path("x").absolute()))) == 1
    assert said(seed=7, root="other") == [] == said(seed=7, val_fraction=None)


@pytest.mark.parametrize("typed", [("experiment=own_photos",), ("data=imagefolder", "experiment=finetune"), ()])
def test_a_resumed_run_keeps_the_preprocessing_of_its_weights(
    monkeypatch: pytest.MonkeyPatch, typed: tuple[str, ...]
) -> None:
    """experiment= and data= have defaults of their own, which resume=auto in the same command does not take."""
    monkeypatch.setattr("imagenet_ddp.launch.job.check_config.check", _unchecked)
    request = composed("train", [*typed, "model.weights=w.pth"])
    config = copy.deepcopy(request.config)
    seen = {"image_size": 288, "val_resize": 320, "interpolation": "bicubic", "fit": "crop", "mean": [0.5] * 3,
            "std": [0.2] * 3}  # fmt: skip
    use_preprocessing(config, request, Facts(data=seen))
    stored = to_plain(typed_config(config, RunConfig))

    def changed(*more: str) -> set[str]:
        again = composed("train", [*typed, "model.weights=w.pth", *more])
        return {*changes(stored, _resumed_config(again, {}, stored, Path("last.ckpt"), Place()))}

    assert stored["data"]["interpolation"] == "bicubic"
    assert changed() == set()
    assert changed("data.interpolation=bilinear") == {"data.interpolation"}


def _unchecked(config: DictConfig, environ: Any, verb: str, typed: Any) -> Checked:
    return Checked([], values=typed_config(config, COMMANDS[verb]))


def _merged(monkeypatch: pytest.MonkeyPatch, stored: dict[str, Any], *typed: str) -> CommonConfig:
    """What evaluate makes of a checkpoint's config on other data."""
    transform = {"image_size": 64, "val_resize": 73, "mean": [0.5] * 3, "std": [0.2] * 3, "interpolation": "bilinear",
                 "val_mirror": False}  # fmt: skip
    content = {checkpoint_file.KEY: {"config": stored, "eval_transform": transform}}
    monkeypatch.setattr(checkpoint_file, "read", lambda path: content)
    # there is no such file
    monkeypatch.setattr("imagenet_ddp.launch.job.check_config.check", _unchecked)
    request = composed("evaluate", ["checkpoint=some.ckpt", "data=shapes", *typed])
    return from_checkpoint(request, Path("some.ckpt"), {}, EvaluateConfig)
