"""Decide the config, the run folder and the checkpoint of a job."""

import copy
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from imagenet_ddp.cli import parse, validate
from imagenet_ddp.cli.overrides import merge_overrides, typed_config, typed_value
from imagenet_ddp.cli.text_values import quoted
from imagenet_ddp.config.keys import leaves
from imagenet_ddp.config.schema.commands import CommonConfig, TrainConfig
from imagenet_ddp.distributed.launchers import slurm_requeue
from imagenet_ddp.distributed.launchers.detect import restarted
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, num_devices
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import checkpoints, folder, summary
from imagenet_ddp.system.text import count_noun

# Keys that a resumed run must not change: another net, other images or another order would make it a different run.
FIXED_PREFIXES = (
    "model.name", "model._target_", "model.args", "model.library", "model.freeze", "model.unfreeze_epoch",
    "optim.name", "optim._target_", "optim.no_decay_on", "optim.layer_decay", "optim.lr_head", "averaging.name", "seed",
    "data.name", "data._target_", "data.args", "data.train_dir", "data.val_dir", "data.val_fraction", "data.val_fold",
    "data.fold", "data.sampling", "data.repeats", "data.shuffle_window_shards",
)  # fmt: skip

BATCH_PREFIXES = ("data.batch_size", "trainer.accumulate_grad_batches", "strategy.name", "strategy.first_device_batch")


@dataclass(frozen=True)
class Job:
    """One training or evaluation, decided by the first of its commands and passed to every process."""

    config: CommonConfig  # of the command
    run_dir: Path
    checkpoint: Path | None = None  # to resume from, or to evaluate
    messages: tuple[str, ...] = ()  # from before the processes started, for the top of the log
    finished: bool = False  # whether a resumed run has nothing left to do
    command: str = ""  # as typed
    experiment: str | None = None  # value of experiment=, in this command or in the first command of a resumed run
    update_before: int | None = None  # images per update of the weights before the resume; None for a new run
    keep_update: bool = True  # keep update_before on any number of devices; False if the command sets another batch

    @property
    def program(self) -> str:
        """Return how the command called Python: python, or uv run python."""
        return self.command.partition(" -m ")[0]


def should_requeue(job: Job, signal_number: int, environ: Mapping[str, str]) -> bool:
    """Return whether SLURM should requeue a stopped job. Without a checkpoint it should not, because the job would
    start over each time."""
    has_checkpoint = checkpoints.has_checkpoint(job.run_dir)
    return has_checkpoint and slurm_requeue.should_requeue(signal_number, job.config, environ)


def decide(
    request: parse.Request,
    environ: Mapping[str, str],
    launch_info: LaunchInfo,
    command: str,
    num_local: int | None = None,
) -> Job:
    """Decide the config, the run folder and the checkpoint of a training run. Make only the folder, which the caller
    removes if the run does not start. Raises ConfigError if the run cannot be resumed as typed. num_local: number of
    workers that each node has announced; None if the nodes have not announced any."""
    if request.configs[0].resume or _again(request, environ):
        job = _resume(request, environ, launch_info, num_local)
    else:
        config = _new_config(request, environ)
        job = Job(config, new_folder(request, run_key=launch_info.run_key))
    typed = typed_value(request, "experiment")
    experiment = job.experiment if typed is None else None if typed == "null" else typed
    return replace(job, command=command, experiment=experiment)


def _new_config(request: parse.Request, environ: Mapping[str, str]) -> TrainConfig:
    """Return the config of a run that starts from its initial weights, with the preprocessing of these weights."""
    config = request.configs[0]
    if not OmegaConf.select(config, "model.weights"):
        return typed_config(config, TrainConfig)
    from imagenet_ddp.engine.trained_model import read_other, use_preprocessing

    config = copy.deepcopy(config)
    use_preprocessing(config, request, read_other(typed_config(config, TrainConfig).model).facts)
    if mistakes := validate.validate(config, environ, request.verb, typed=request.typed)[0]:
        raise ConfigError(mistakes)
    return typed_config(config, TrainConfig)


def _again(request: parse.Request, environ: Mapping[str, str]) -> bool:
    """Return whether this run was started before, because its launcher restarted the job or the sweep is resumed."""
    return request.again or restarted(environ)


def _resume(request: parse.Request, environ: Mapping[str, str], launch_info: LaunchInfo, num_local: int | None) -> Job:
    config, run_key = request.configs[0], launch_info.run_key
    wanted = Path(request.hydra.run.dir)
    typed_dir = wanted if typed_value(request, "hydra.run.dir") else None
    found = None
    if _again(request, environ):
        own = typed_dir or (folder.made_for(wanted.with_name(run_key), request.typed) if run_key else None)
        found = checkpoints.find_own(own) if own else None
        if own and found is None and (finished := _finished_without_checkpoint(own, typed_config(config, TrainConfig))):
            return finished
    if found is None and config.resume:
        found = checkpoints.find_resume(config.resume, typed_dir, wanted.parent)
        if typed_dir and found.folder and typed_dir.resolve() != found.folder.resolve():
            raise ConfigError(
                f"hydra.run.dir must be {found.folder} with resume={config.resume}, because a resumed run continues in "
                f"its own folder, got {typed_dir}. Hint: leave hydra.run.dir out, or continue a copy: run "
                f"`{shlex.join(['cp', '-r', str(found.folder), str(typed_dir)])}`, then set "
                f"{quoted(f'resume={typed_dir}')}."
            )
    if found is None or found.checkpoint is None:
        # a run that died before its first checkpoint starts over in its folder
        messages = (found.sentence,) if found else ()
        new = _new_config(request, environ)
        return Job(new, new_folder(request, again=True, run_key=run_key), messages=messages)
    from imagenet_ddp.runs.checkpoint_file import KEY, read

    contents = read(found.checkpoint)[KEY]
    stored = contents["config"]
    merged = merge_overrides(stored, config, request.typed, (*TYPED_ONLY, *OF_THIS_COMMAND))
    if mistakes := _other_world(merged.trainer, found.checkpoint, launch_info, num_local):
        raise ConfigError(mistakes)
    if mistakes := validate.validate(merged, environ, "train", typed=request.typed)[0]:
        raise ConfigError(mistakes)
    resolved = typed_config(merged, TrainConfig)
    changed = changes(stored, resolved)
    of_checkpoint = leaves(stored)  # a key that an older version lacked had its default value in that run
    fixed = [line for key, line in changed if key.startswith(FIXED_PREFIXES) and key in of_checkpoint]
    if fixed:
        raise ConfigError(
            [
                f"{line}, but a resumed run keeps its model, data and seed. "
                "Hint: leave this option out, or start a new run without resume="
                for line in fixed
            ]
        )
    run_dir = found.folder or new_folder(request, run_key=run_key)
    if found.finished_epochs is not None and not _is_prolonged(resolved["trainer"], found.finished_epochs, changed):
        return _finished(run_dir, resolved)
    lines = tuple(f"Changed: {line}." for _, line in changed)
    return Job(
        resolved,
        run_dir,
        found.checkpoint.resolve(),
        (found.sentence, *lines),
        experiment=contents["experiment"],
        update_before=contents["images_per_update"],
        keep_update=not any(key.startswith(BATCH_PREFIXES) for key, _ in changed),
    )


def _finished_without_checkpoint(run_dir: Path, config: CommonConfig) -> Job | None:
    """Return the job of a finished run that had callbacks.checkpoint=null; None if it still has to be trained."""
    epochs = folder.finished_epochs(run_dir)
    if epochs is None or _is_prolonged(config["trainer"], epochs, changes(summary.read_config(run_dir), config)):
        return None
    return _finished(run_dir, config)


def _is_prolonged(trainer: Mapping[str, Any], epochs: int, changed: list[tuple[str, str]]) -> bool:
    """Return whether the limit that ended a finished run has changed. epochs: number of completely trained epochs."""
    most = trainer["max_epochs"]
    if most is not None and 0 <= most <= epochs:
        return False
    return changes_end(changed)


def changes_end(changed: list[tuple[str, str]]) -> bool:
    """Return whether an option that can end a training run has changed."""
    ends = ("trainer.max_epochs", "trainer.max_steps", "trainer.max_time", "callbacks", "budget_min")
    return any(key.startswith(ends) for key, _ in changed)


def _finished(run_dir: Path, config: CommonConfig) -> Job:
    """Return the job of a finished run, with a message that explains how to continue it."""
    trainer, ended = config["trainer"], folder.summary(run_dir)
    epochs, steps = ended["epochs"], ended.get("steps", 0)
    if trainer["max_epochs"] is not None and 0 <= trainer["max_epochs"] <= epochs:
        hint = f"set trainer.max_epochs={2 * epochs} to continue"
    elif 0 <= trainer["max_steps"] <= steps:
        hint = f"set trainer.max_steps={2 * steps} to continue"
    elif config.get("budget_min"):
        hint = "set budget_min=null to train up to trainer.max_epochs"
    elif trainer["max_time"] is not None:
        hint = "set trainer.max_time=null to continue"
    else:
        hint = "set callbacks=default to continue without the callback that ended the run"
    sentence = f"{run_dir} is finished: {epochs} epochs of {trainer['max_epochs']}. Hint: {hint}."
    return Job(config, run_dir, messages=(sentence,), finished=True)


def _other_world(trainer: DictConfig, checkpoint: Path, launch_info: LaunchInfo, num_local: int | None) -> list[str]:
    """Return an error if the resumed run's number of nodes or devices does not match this command. The run keeps its
    own numbers unless others are typed, but nodes that have already joined cannot change theirs."""
    num_nodes, devices = trainer.num_nodes, num_devices(trainer.devices)
    if isinstance(num_nodes, int) and num_nodes != launch_info.num_nodes:
        return [
            f"{checkpoint} was written with trainer.num_nodes={num_nodes}, but this command has "
            f"{count_noun(launch_info.num_nodes, 'node')}. Hint: set trainer.num_nodes={num_nodes} and cluster.address "
            f"on each node, or set trainer.num_nodes={launch_info.num_nodes}."
        ]
    if num_local is not None and devices is not None and devices != num_local:
        return [
            f"{checkpoint} was written with trainer.devices={devices}, but each node has "
            f"{count_noun(num_local, 'device')}. Hint: set trainer.devices={devices} or trainer.devices={num_local} on "
            "each node."
        ]
    return []


def changes(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (key, "key was A and is now B") for every key that differs."""
    before, after = leaves(stored), leaves(now)
    keys = [
        key
        for key in sorted(before.keys() | after.keys())
        if key not in ("resume", "show") and not key.startswith("sweep.")
    ]
    return [
        (key, f"{key} was {before.get(key, 'not set')} and is now {after.get(key, 'not set')}")
        for key in keys
        if before.get(key) != after.get(key)
    ]


def new_folder(
    request: parse.Request, name: str | None = None, *, again: bool = False, run_key: str | None = None
) -> Path:
    """Make and return the folder of a new run: the typed folder, or one named after the run and the time, or after the
    launcher's key. name: name of the run, if a checkpoint overrides the one of the command line. again: accept a folder
    in which this run was started before."""
    wanted = Path(request.hydra.run.dir)
    if typed_value(request, "hydra.run.dir") is not None:
        again = again or _again(request, os.environ)
        return folder.make_given(wanted, again=again, can_resume=request.verb == "train")
    if name:
        wanted = wanted.parent.with_name(name) / wanted.name
    if run_key is None:
        return folder.make_new(wanted)
    # the name must be the same when the launcher restarts the job later
    return folder.make_new(wanted.with_name(run_key), again=restarted(os.environ), options=request.typed)


# Keys read from the command line only, because a file from elsewhere must not be able to allow code to run.
TYPED_ONLY = ("allow_targets",)

# Keys that belong to this command, such as where its processes meet and which process this is.
OF_THIS_COMMAND = (
    *(f"cluster.{key}" for key in ("name", "address", "job_id", "node_rank", "rank", "local_rank", "world_size")),
    "sweep",
    "show",
)
