"""What may be typed about callbacks and loggers, and the list that comes of it."""

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from lightning.pytorch import Callback
from omegaconf import OmegaConf

from imagenet_ddp.callbacks.factory import make_callbacks, make_loggers
from imagenet_ddp.callbacks.learning_rate import LearningRate
from imagenet_ddp.callbacks.loggers import MLFlowLogger
from imagenet_ddp.callbacks.sequence import First, Last
from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema import commands
from imagenet_ddp.config.schema.run import RunConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.models.task import OneLabel
from imagenet_ddp.runs.log import Log
from imagenet_ddp.runs.signals import Signals


def composed(*typed: str) -> RunConfig:
    commands.register("train")
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("train", list(typed))
        groups: Any = {key: OmegaConf.to_container(config[key], resolve=True) for key in ("callbacks", "logger")}
        data = {"name": "pets", "image_size": 32}
        return to_config({**groups, "val_log_every_n_steps": 7, "data": data}, RunConfig)


def made(tmp_path: Path, *typed: str) -> list[Callback]:
    return make_callbacks(
        composed(*typed), tmp_path, log=Log(None, 1), signals=Signals(),
        task=OneLabel(10), learning_rate=LearningRate(), bad_images=list, contents={"classes": ["a${b}"]},
        hyperparams={},
    )  # fmt: skip


BUILT_IN = {"Progress", "BatchSheet", "NonFiniteLoss", "ResumeCheckpoint"}
LIGHTNINGS = "_target_=lightning.pytorch.callbacks"


@pytest.mark.parametrize(
    ("typed", "left_out", "added"),
    [
        (None, set(), ["History"]),
        ("callbacks=none", BUILT_IN, []),
        ("callbacks=[history]", BUILT_IN, ["History"]),
        ("~callbacks.progress", {"Progress"}, ["History"]),
        ("callbacks=[history,early_stopping]", set(), ["EarlyStopping", "History"]),
        (f"callbacks.checkpoint.{LIGHTNINGS}.ModelCheckpoint", {"ResumeCheckpoint"}, ["ModelCheckpoint", "History"]),
    ],
)
def test_each_can_be_left_out_replaced_and_added(
    tmp_path: Path, typed: str | None, left_out: set[str], added: list[str]
) -> None:
    first, *others, last = made(tmp_path, *filter(None, [typed]))
    assert isinstance(first, First) and isinstance(last, Last)
    parts = {type(callback).__name__ for callback in first.members}
    assert parts == {"LearningRate", "TrainLog", "BadImagesList", *BUILT_IN} - left_out
    assert [type(callback).__name__ for callback in others] == added


def test_runs_of_a_sweep_are_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    (tmp_path / "s/0").mkdir(parents=True)
    (tmp_path / "s/sweep.yaml").touch()
    (tmp_path / "study/trials/3").mkdir(parents=True)
    config = composed("logger=mlflow", "logger.mlflow.experiment_name=e")
    for folder, group in (("s/0", "s"), ("study/trials/3", "study"), ("study", None)):
        [logger] = make_loggers(config, tmp_path / folder, 0)
        assert isinstance(logger, MLFlowLogger)
        assert logger.group == group
