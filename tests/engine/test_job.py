"""What a command decides before it starts processes: the folder's place on the line, and a resumed run's world."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from imagenet_ddp.cli.overrides import in_folder
from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.engine.job import Job, _other_world, _resume, should_requeue
from imagenet_ddp.engine.stored_config import _other_split, from_checkpoint
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import checkpoint_file
from imagenet_ddp.runs.folder import last_checkpoint


def test_the_folder_stands_beside_the_other_options() -> None:
    """Hydra's parser takes no key=value on both sides of -m."""
    assert in_folder(["-m", "a=1,2", "b=1"], "hydra.sweep.dir", Path("x")) == [
        "-m",
        "hydra.sweep.dir='x'",
        "a=1,2",
        "b=1",
    ]
    assert in_folder(["--config-dir", "c"], "hydra.run.dir", Path("x")) == ["--config-dir", "c", "hydra.run.dir='x'"]
    assert in_folder(["a=1,2", "-m"], "hydra.sweep.dir", Path("x y")) == ["hydra.sweep.dir='x y'", "a=1,2", "-m"]
    assert in_folder(["hydra.run.dir=old", "a=1"], "hydra.run.dir", Path("new")) == ["hydra.run.dir='new'", "a=1"]
    odd = r"it's a\b \'c"
    assert OverridesParser.create().parse_override(in_folder([], "a", Path(odd))[0]).value() == odd


@pytest.mark.parametrize(
    ("num_nodes", "devices", "nodes_here", "num_local", "said"),
    [
        ("auto", "auto", 1, None, None),
        ("auto", 2, 1, None, None),  # one node starts what the run had
        (2, 2, 2, 2, None),
        (2, "auto", 2, 1, None),
        (1, "0,3", 1, None, None),
        (2, 2, 1, None, "with trainer.num_nodes=2, but this command has 1 node. Hint: set trainer.num"),
        (1, 2, 2, 2, "with trainer.num_nodes=1, but this command has 2 nodes."),
        (2, 2, 2, 1, "with trainer.devices=2, but each node has 1 device. Hint: set trainer.devices="),
        ("auto", [0, 1], 2, 1, "with trainer.devices=2, but each node has 1 device."),
    ],
)
def test_a_resumed_run_meets_with_the_world_it_had(
    num_nodes: object, devices: object, nodes_here: int, num_local: int | None, said: str | None
) -> None:
    trainer = OmegaConf.create({"num_nodes": num_nodes, "devices": devices})
    found = _other_world(trainer, Path("last.ckpt"), LaunchInfo(num_nodes=nodes_here), num_local)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


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
    with pytest.raises(ConfigError, match="limit_val_batches must be more than 0 in an evaluation, got 0"):
        _merged(monkeypatch, stored, "trainer.limit_val_batches=0")


def test_other_images_are_turned_as_those_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"data": {"name": "imagefolder", "exif_orientation": True}}
    assert _merged(monkeypatch, stored)["data"]["name"] == "shapes"
    assert _merged(monkeypatch, stored)["data"]["exif_orientation"] is True
    assert _merged(monkeypatch, stored, "data.exif_orientation=false")["data"]["exif_orientation"] is False


def test_an_evaluation_keeps_the_split_of_the_training() -> None:
    """Another seed would choose other images, most of which were trained on."""

    def said(**changed: Any) -> list[str]:
        stored = {"seed": 0, "data": {"name": "imagefolder", "root": "x", "val_fraction": 0.2, "val_fold": 1}}
        data = {**stored["data"], **{key: value for key, value in changed.items() if key != "seed"}}
        now = OmegaConf.create({"seed": changed.get("seed", 0), "data": {"_target_": None, **data}})
        return _other_split(stored, now, Path("last.ckpt"))

    assert said() == []
    assert said(seed=7) == [
        "seed must be 0, as in last.ckpt, because it chooses which images are not trained on (data.val_fraction), "
        "got 7. Hint: leave seed out."
    ]
    assert len(said(seed=7, val_fraction=0.3, val_fold=0)) == 3
    assert len(said(seed=7, root="./x/")) == len(said(seed=7, root=str(Path("x").absolute()))) == 1
    assert said(seed=7, root="other") == [] == said(seed=7, val_fraction=None)


def _merged(monkeypatch: pytest.MonkeyPatch, stored: dict[str, Any], *typed: str) -> CommonConfig:
    """What evaluate makes of a checkpoint's config on other data."""
    transform = {"image_size": 64, "val_resize": 73, "mean": [0.5] * 3, "std": [0.2] * 3, "interpolation": "bilinear",
                 "val_mirror": False}  # fmt: skip
    content = {checkpoint_file.KEY: {"config": stored, "eval_transform": transform}}
    monkeypatch.setattr(checkpoint_file, "read", lambda path: content)
    # there is no such file
    monkeypatch.setattr("imagenet_ddp.engine.stored_config.validate.validate", lambda *args, **more: ([], []))
    request = command_line("evaluate", ["checkpoint=some.ckpt", "data=shapes", *typed], {}, compose_only=True)
    return from_checkpoint(request, Path("some.ckpt"), {})


@pytest.mark.parametrize(
    ("stored", "now", "finished"),
    [
        ({"max_epochs": 2}, {"max_epochs": 2}, True),
        ({"max_epochs": 2}, {"max_epochs": 3}, False),
        ({"max_epochs": 9, "max_steps": 5}, {"max_epochs": 9, "max_steps": 5}, True),
        (None, {"max_epochs": 2}, False),  # it did not end
    ],
)
def test_a_finished_run_without_checkpoints_is_not_trained_again(
    tmp_path: Path, stored: dict[str, int] | None, now: dict[str, int], finished: bool
) -> None:
    """A sweep that goes on, and a job that SLURM starts again, with callbacks.checkpoint=null."""
    config = {"trainer": {"max_steps": -1, "max_time": None, **now}, "callbacks": {}, "resume": None}
    if stored is not None:
        before = {**config, "trainer": {**config["trainer"], **stored}}  # type: ignore[dict-item]
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(before))
        (tmp_path / "summary.json").write_text(json.dumps({"finished": True, "epochs": 2, "steps": 5}))
    request: Any = SimpleNamespace(
        configs=[OmegaConf.create(config)], hydra=OmegaConf.create({"run": {"dir": str(tmp_path)}}),
        typed=[f"hydra.run.dir={tmp_path}"], again=True, verb="train",
    )  # fmt: skip
    job = _resume(request, {}, LaunchInfo(num_nodes=1), None)
    assert (job.finished, job.run_dir) == (finished, tmp_path)


def test_only_a_run_that_can_resume_is_requeued(tmp_path: Path) -> None:
    job = Job(to_config({"cluster": {"requeue": True}}, CommonConfig), tmp_path)
    environ = {"SLURM_JOB_ID": "7"}
    assert not should_requeue(job, signal.SIGUSR2, environ)  # it would start over
    last_checkpoint(tmp_path).parent.mkdir()
    last_checkpoint(tmp_path).touch()
    assert should_requeue(job, signal.SIGUSR2, environ)
    assert not should_requeue(job, signal.SIGTERM, environ)
    assert not should_requeue(job, signal.SIGUSR2, {})
    assert not should_requeue(replace(job, config={"cluster": {"requeue": False}}), signal.SIGUSR2, environ)
