"""Make the callbacks of a run and its loggers."""

import functools
import inspect
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import lightning.pytorch as L
from hydra.utils import get_object
from lightning.pytorch.loggers.logger import DummyLogger, Logger

from imagenet_ddp.callbacks.checkpoint import ResumeCheckpoint
from imagenet_ddp.callbacks.learning_rate import LearningRate
from imagenet_ddp.callbacks.progress import Progress
from imagenet_ddp.callbacks.run_end import TimeLimit
from imagenet_ddp.callbacks.run_files import BadImagesList, History, LoggedFiles
from imagenet_ddp.callbacks.sequence import in_order
from imagenet_ddp.callbacks.train_log import TrainLog
from imagenet_ddp.config.figures import START, figure_of
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.schema.trainer import time_in_s
from imagenet_ddp.config.section import make
from imagenet_ddp.errors import RunError, is_silent_end, place_of, silent_end
from imagenet_ddp.models.task import Task
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.folder import run_group
from imagenet_ddp.runs.log import Log
from imagenet_ddp.runs.signals import Signals
from imagenet_ddp.system.console import Say, print_message

T = TypeVar("T")
TRUSTED = ("imagenet_ddp", "lightning")  # packages whose callbacks and loggers raise only what Lightning expects


def make_callbacks(
    config: CommonConfig,
    run_dir: Path,
    *,
    log: Log,
    signals: Signals,
    task: Task,
    start: str = START,
    learning_rate: LearningRate,
    watches: Sequence[L.Callback] = (),
    bad_images: Callable[[], list[tuple[str, str]]],
    contents: Mapping[str, Any],
    hyperparams: Mapping[str, Any],
) -> list[L.Callback]:
    """Return the callbacks of every run, and those of the config's callbacks group, in the order of sequence.py.

    task: of the module. start: what the weights before the first step are. learning_rate: sets the rate of each step.
    watches: further parts of sequence.py. bad_images: function that returns (path, reason) for each unreadable image.
    contents: items that a checkpoint stores beside the weights. hyperparams: hyper-parameters for the loggers.
    """
    checkpoints = CheckpointStore.of_run(run_dir).folder
    entries = {name: _monitoring(task, node) for name, node in given(config.callbacks).items()}
    own: list[Any] = [
        # a ModelCheckpoint has a folder of its own, so that its files cannot be those of ResumeCheckpoint
        make_entry("callbacks", name, node, L.Callback, dirpath=str(checkpoints / name), run_dir=str(run_dir),
                   val_log_every_n_steps=config.val_log_every_n_steps)
        for name, node in entries.items()
    ]  # fmt: skip
    for (name, node), callback in zip(entries.items(), own, strict=True):
        callback.config_key = f"callbacks.{name}"  # for run_end.ended_by
        if isinstance(callback, ResumeCheckpoint):
            if not node.get("dirpath"):
                callback.dirpath = checkpoints
            callback.contents |= contents
        elif isinstance(callback, Progress):
            callback.run_log = log
        elif isinstance(callback, History) and callback.title is None:
            size = config.data.image_size
            callback.title = f"{config.model.name} on {config.data.name}, {size} px"
    for callback in own:
        guard(callback, L.Callback, log.say)
    callbacks: list[L.Callback] = [
        learning_rate,
        TrainLog(f"val/{task.score.name}", task.score.mode, start),
        *([TimeLimit(time_in_s(config.trainer.max_time))] if config.trainer.max_time is not None else []),
        *own,
        *([LoggedFiles(run_dir, hyperparams)] if given(config.logger) else []),
        BadImagesList(run_dir / "bad_images.csv", bad_images, config.csv_delimiter),
        *watches,
    ]
    return in_order(callbacks, signals)


def make_loggers(config: CommonConfig, run_dir: Path, rank: int) -> list[Logger]:
    """Return the loggers of the config's logger group, which write into the run folder unless configured otherwise.

    Ranks other than 0 get dummy loggers, because two real loggers would create the same database at once.
    """
    if rank:
        return [DummyLogger() for _ in given(config.logger)]
    folder, group = str(run_dir), run_group(run_dir)
    return [
        guard(make_entry("logger", name, node, Logger, save_dir=folder, run_dir=folder, group=group), Logger)
        for name, node in given(config.logger).items()
    ]


def guard(own: T, base: type, say: Say = print_message) -> T:
    """Wrap the methods of a callback or logger of the user's own that override those of base, and return it.
    KeyboardInterrupt is then a stop as by Ctrl-C: the step is completed, and the run saves. What else would end a loop
    of Lightning or the process without an error is a RunError."""
    cls = type(own)
    if cls.__module__.partition(".")[0] in TRUSTED:
        return own

    def guarded(method: Callable[..., Any], who: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except KeyboardInterrupt as stop:
                say(f"{who} raised KeyboardInterrupt ({place_of(stop)}): the run stops.")
                signal.raise_signal(signal.SIGINT)
            except BaseException as error:
                if not is_silent_end(error):
                    raise
                raise RunError(silent_end(error, who)) from error

        return call

    for name, inherited in inspect.getmembers_static(base, inspect.isfunction):
        if not name.startswith("_") and inspect.getattr_static(cls, name) is not inherited:
            setattr(own, name, guarded(getattr(own, name), f"{cls.__name__}.{name}"))
    return own


def given(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are not switched off."""
    return {name: node for name, node in entries.items() if node is not None}


def _monitoring(task: Task, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entry of a callback with the score of the task for monitor=auto, and what is better for mode=auto."""
    entry = dict(entry)
    if entry.get("monitor") == "auto" or (entry.get("mode") == "auto" and entry.get("monitor", "") is None):
        entry["monitor"] = f"val/{task.score.name}"
    if entry.get("mode") == "auto" and "monitor" in entry:
        entry["mode"] = figure_of(entry["monitor"]).mode
    return entry


def make_entry(group: str, name: str, node: Mapping[str, Any], kind: type, /, **defaults: Any) -> Any:
    """Make the object of an entry {_target_: ..., arguments} of a config group. kind: what it must be.

    defaults: arguments passed if the class has a parameter of this name without a default, or with the default None,
    unless the entry sets the argument itself.
    """
    arguments = dict(node)
    target = arguments.pop("_target_")
    arguments = {**_open_arguments(target, {**defaults, "entry": name}), **arguments}
    return make(f"{group}.{name}._target_", target, arguments, kind)


def _open_arguments(target: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values whose name is a parameter of the target without a default, or with the default None."""
    try:
        parameters = inspect.signature(get_object(target)).parameters
    except Exception:  # make() reports the reason
        return {}
    is_open = (inspect.Parameter.empty, None)
    return {name: value for name, value in values.items() if name in parameters and parameters[name].default in is_open}
