"""What may be typed about callbacks and loggers, and the list that comes of it."""

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers.logger import DummyLogger
from omegaconf import OmegaConf

from imagenet_ddp.callbacks.checkpoint import ResumeCheckpoint
from imagenet_ddp.callbacks.defaults import make_callbacks, make_loggers
from imagenet_ddp.callbacks.history import History
from imagenet_ddp.callbacks.learning_rate import LearningRate
from imagenet_ddp.callbacks.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger
from imagenet_ddp.callbacks.progress import Progress
from imagenet_ddp.config.conf_dir import conf_dir
from imagenet_ddp.config.schema import commands
from imagenet_ddp.config.schema.commands import TrainConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.runs.log import Log
from imagenet_ddp.runs.signals import Signals


def composed(*typed: str) -> TrainConfig:
    commands.register("train")
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("train", list(typed))
        groups: Any = {key: OmegaConf.to_container(config[key], resolve=True) for key in ("callbacks", "logger")}
        data = {"name": "pets", "image_size": 32}
        return to_config({**groups, "val_log_every_n_steps": 7, "data": data}, TrainConfig)


def made(tmp_path: Path, *typed: str) -> list[Callback]:
    return make_callbacks(
        composed(*typed), tmp_path, log=Log(None, 1), signals=Signals(),
        learning_rate=LearningRate(), bad_images=list, contents={"classes": ["a${b}"]},
        hyperparams={},
    )  # fmt: skip


BUILT_IN = {"Progress", "History", "BatchSheet", "NonFiniteLoss", "ResumeCheckpoint"}
LIGHTNINGS = "_target_=lightning.pytorch.callbacks"


@pytest.mark.parametrize(
    ("typed", "left_out", "added"),
    [
        (None, set(), set()),
        ("callbacks=none", BUILT_IN, set()),
        ("callbacks=[history]", BUILT_IN - {"History"}, set()),
        ("~callbacks.progress", {"Progress"}, set()),
        ("callbacks.checkpoint=null", {"ResumeCheckpoint"}, set()),
        ("callbacks=early_stopping", set(), {"EarlyStopping"}),
        ("callbacks=[history,early_stopping]", set(), {"EarlyStopping"}),
        (f"callbacks.progress.{LIGHTNINGS}.TQDMProgressBar", {"Progress"}, {"TQDMProgressBar"}),
        (f"callbacks.checkpoint.{LIGHTNINGS}.ModelCheckpoint", {"ResumeCheckpoint"}, {"ModelCheckpoint"}),
    ],
)
def test_each_can_be_left_out_replaced_and_added(
    tmp_path: Path, typed: str | None, left_out: set[str], added: set[str]
) -> None:
    names = [type(callback).__name__ for callback in made(tmp_path, *filter(None, [typed]))]
    assert names[:2] == ["LearningRate", "TrainLog"]
    assert names[-2:] == ["BadImagesList", "GracefulStop"]
    assert sorted(names[2:-2]) == sorted(BUILT_IN - left_out | added)
    assert "ResumeCheckpoint" in left_out or names[-3] == "ResumeCheckpoint", "after the user's"


OWN = "+callbacks.own={_target_: lightning.pytorch.callbacks.ModelCheckpoint, monitor: train/loss, %s}"


def test_a_checkpoint_callback_of_the_users_own_has_a_folder_of_its_own(tmp_path: Path) -> None:
    for typed, folder in ((", dirpath: mine", Path("mine")), ("", tmp_path / "checkpoints/own")):
        callbacks = made(tmp_path, OWN % f"filename: best{typed}")
        [own] = [callback for callback in callbacks if type(callback) is ModelCheckpoint]
        assert Path(own.dirpath or "") == folder.absolute()


def test_they_get_what_the_run_knows(tmp_path: Path) -> None:
    callbacks = made(tmp_path, "callbacks.checkpoint.every_n_epochs=5")
    [checkpoint] = [callback for callback in callbacks if isinstance(callback, ResumeCheckpoint)]
    assert checkpoint.last_path == tmp_path / "checkpoints/last.ckpt"
    assert checkpoint.every_n_epochs == 5
    assert checkpoint.contents == {"classes": ["a${b}"]}
    [history] = [callback for callback in callbacks if isinstance(callback, History)]
    assert (history.path, history.title) == (tmp_path / "metrics.csv", "resnet18 on pets, 32 px")
    [progress] = [callback for callback in callbacks if isinstance(callback, Progress)]
    assert isinstance(progress.run_log, Log)


def test_loggers(tmp_path: Path) -> None:
    config = composed("logger=[csv,tensorboard]")
    assert [type(logger) for logger in make_loggers(config, tmp_path, 0)] == [CSVLogger, TensorBoardLogger]
    assert [logger.save_dir for logger in make_loggers(config, tmp_path, 0)] == [str(tmp_path)] * 2
    assert [type(logger) for logger in make_loggers(config, tmp_path, 1)] == [DummyLogger] * 2
    assert make_loggers(composed("logger.csv=null", "logger=csv"), tmp_path, 0) == []


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


def test_what_a_resumed_run_logs_again_is_taken_out(tmp_path: Path) -> None:
    """Other files' cells and columns stay as they are."""
    config = composed("logger=csv")
    [first] = make_loggers(config, tmp_path, 0)
    for step in (3, 7, 11):
        first.log_metrics({"a": step / 3}, step)
        first.save()
    text = (tmp_path / "csv/metrics.csv").read_text()
    [second] = make_loggers(config, tmp_path, 0, first_step=8)
    second.log_metrics({"b": 1.5}, 11)
    second.save()
    assert (tmp_path / "csv/metrics.csv").read_text().splitlines() == [
        "a,b,step", *(line.replace(",", ",,") for line in text.splitlines()[1:3]), ",1.5,11",
    ]  # fmt: skip
