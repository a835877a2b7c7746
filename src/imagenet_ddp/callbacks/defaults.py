"""Make the callbacks of a run, in the order required by their dependencies, and its loggers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.loggers.logger import DummyLogger, Logger

from imagenet_ddp.callbacks.bad_images_list import BadImagesList
from imagenet_ddp.callbacks.checkpoint import ResumeCheckpoint, require_other_files
from imagenet_ddp.callbacks.graceful_stop import GracefulStop
from imagenet_ddp.callbacks.history import History
from imagenet_ddp.callbacks.learning_rate import LearningRate
from imagenet_ddp.callbacks.loggers import RunFiles
from imagenet_ddp.callbacks.progress import Progress
from imagenet_ddp.callbacks.train_log import TrainLog
from imagenet_ddp.config.instantiate import make, open_arguments
from imagenet_ddp.runs.checkpoints import CheckpointStore
from imagenet_ddp.runs.folder import run_group
from imagenet_ddp.runs.log import Log
from imagenet_ddp.runs.signals import Signals

Config = Mapping[str, Any]


def make_callbacks(
    config: Config,
    run_dir: Path,
    *,
    log: Log,
    signals: Signals,
    learning_rate: LearningRate,
    bad_images: Callable[[], list[tuple[str, str]]],
    contents: Mapping[str, Any],
    hyperparams: Mapping[str, Any],
) -> list[L.Callback]:
    """Return the callbacks of every run, and those of the config's callbacks group.

    learning_rate: sets the rate of each step. bad_images: function that returns
    (path, reason) for each unreadable image. contents: items that a checkpoint stores beside the weights. hyperparams:
    hyper-parameters for the loggers.
    """
    steps, checkpoints = config["val_log_every_n_steps"], CheckpointStore.of_run(run_dir).folder
    own = make_entries(config, "callbacks", dirpath=str(checkpoints), run_dir=str(run_dir), val_log_every_n_steps=steps)
    require_other_files(dict(zip(given(config["callbacks"]), own, strict=True)), checkpoints)
    for callback in own:
        if isinstance(callback, ResumeCheckpoint):
            callback.contents |= contents
        elif isinstance(callback, Progress):
            callback.run_log = log
        elif isinstance(callback, History) and callback.title is None:
            size = config["data"]["image_size"]
            callback.title = f"{config['model']['name']} on {config['data']['name']}, {size} px"
    # Lightning calls the callbacks in this order, but Checkpoint callbacks after all others.
    callbacks = [
        learning_rate,  # before LearningRateMonitor, which reads the rate in the same hooks
        TrainLog(),  # before all callbacks that read trainer.callback_metrics
        *sorted(own, key=lambda callback: isinstance(callback, ResumeCheckpoint)),  # after the user's ModelCheckpoint
        *([RunFiles(run_dir, hyperparams)] if given(config["logger"]) else []),  # after all that draw
        BadImagesList(run_dir / "bad_images.csv", bad_images),
        GracefulStop(signals),  # after all others, so that its checkpoint includes their work at a step
    ]
    return callbacks


def make_loggers(config: Config, run_dir: Path, rank: int, first_step: int = 0) -> list[Logger]:
    """Return the loggers of the config's logger group, which write into the run folder unless configured otherwise.

    Ranks other than 0 get dummy loggers, because two real loggers would create the same database at once. first_step:
    number of steps trained before a resume.
    """
    if rank:
        return [DummyLogger() for _ in given(config["logger"])]
    folder = str(run_dir)
    return make_entries(
        config, "logger", save_dir=folder, run_dir=folder, first_step=first_step, group=run_group(run_dir)
    )


def given(entries: Mapping[str, Any]) -> list[str]:
    """Return the names of the entries that are not switched off."""
    return [name for name, node in entries.items() if node is not None]


def make_entries(config: Config, group: str, /, **defaults: Any) -> list[Any]:
    """Make the objects of a config group, which maps names to {_target_: ..., arguments}, or to null for entries that
    are switched off.

    defaults: arguments passed to each class that has a parameter of this name without a default, or with the default
    None, unless the entry sets the argument itself.
    """
    made = []
    for name, node in config[group].items():
        if node is not None:
            target = node["_target_"]
            arguments = {key: value for key, value in node.items() if key != "_target_"}
            arguments = {**open_arguments(target, {**defaults, "entry": name}), **arguments}
            made.append(make(f"{group}.{name}._target_", target, arguments))
    return made
