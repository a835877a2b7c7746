"""Decide the config, the run folder and the checkpoint of a job."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from imagenet_ddp.cli import check_config, parse
from imagenet_ddp.cli.overrides import merge_overrides, typed_config, typed_value
from imagenet_ddp.config.schema.commands import CommonConfig, TrainConfig
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.launchers.detect import restarted
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.engine import resume
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.checkpoints import CheckpointStore
from imagenet_ddp.runs.summary import read_config

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
    is_saved = bool(CheckpointStore.of_run(job.run_dir).files())
    return is_saved and slurm.should_requeue(signal_number, job.config, environ)


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
    run_key, typed = launch_info.run_key, typed_value(request, "experiment")
    experiment = None if typed == "null" else typed
    earlier = resume.find(request, environ, run_key)
    if earlier.checkpoint is None:
        config, run_dir = _new_config(request, environ), earlier.run_dir
        if run_dir and resume.is_finished(run_dir, config.trainer, resume.changes(read_config(run_dir), config)):
            return _finished(run_dir, config)
        # a run that died before its first checkpoint starts over in its folder
        run_dir = new_folder(request, environ, again=bool(config.resume), run_key=run_key)
        messages = (earlier.sentence,) if earlier.sentence else ()
        return Job(config, run_dir, messages=messages, command=command, experiment=experiment)
    from imagenet_ddp.runs.checkpoint_file import KEY, read

    stored = read(earlier.checkpoint)[KEY]
    config = _resumed_config(request, environ, stored["config"], earlier.checkpoint, launch_info, num_local)
    changed = resume.changes(stored["config"], config)
    resume.refuse_other_run(stored["config"], changed)
    if earlier.run_dir and resume.is_finished(earlier.run_dir, config.trainer, changed):
        return _finished(earlier.run_dir, config)
    return Job(
        config,
        earlier.run_dir or new_folder(request, environ, run_key=run_key),
        earlier.checkpoint.resolve(),
        (earlier.sentence, *(f"Changed: {line}." for line in changed.values())),
        command=command,
        experiment=stored["experiment"] if typed is None else experiment,
        update_before=stored["images_per_update"],
        keep_update=not any(key.startswith(BATCH_PREFIXES) for key in changed),
    )


def _finished(run_dir: Path, config: TrainConfig) -> Job:
    return Job(config, run_dir, messages=(resume.finished_sentence(run_dir, config),), finished=True)


def _new_config(request: parse.Request, environ: Mapping[str, str]) -> TrainConfig:
    """Return the config of a run that starts from its initial weights, with the preprocessing of these weights."""
    config = request.configs[0]
    if not OmegaConf.select(config, "model.weights"):
        return typed_config(config, TrainConfig)
    from imagenet_ddp.engine.trained_model import find_other, use_preprocessing

    config = copy.deepcopy(config)
    use_preprocessing(config, request, find_other(typed_config(config, TrainConfig).model).facts)
    return _checked(config, request, environ)


def _resumed_config(
    request: parse.Request,
    environ: Mapping[str, str],
    stored: Mapping[str, Any],
    checkpoint: Path,
    launch_info: LaunchInfo,
    num_local: int | None,
) -> TrainConfig:
    """Return the config of a checkpoint, overridden by the typed options. stored: the config in the checkpoint."""
    afresh = (*resume.TYPED_ONLY, *resume.OF_THIS_COMMAND)
    merged = merge_overrides(stored, request.configs[0], request.typed, afresh)
    resume.refuse_other_world(merged.trainer, checkpoint, launch_info, num_local)
    return _checked(merged, request, environ)


def _checked(config: DictConfig, request: parse.Request, environ: Mapping[str, str]) -> TrainConfig:
    if mistakes := check_config.validate(config, environ, request.verb, typed=request.typed)[0]:
        raise ConfigError(mistakes)
    return typed_config(config, TrainConfig)


def new_folder(
    request: parse.Request,
    environ: Mapping[str, str],
    name: str | None = None,
    *,
    again: bool = False,
    run_key: str | None = None,
) -> Path:
    """Make and return the folder of a new run: the typed folder, or one named after the run and the time, or after the
    launcher's key. name: name of the run, if a checkpoint overrides the one of the command line. again: accept a folder
    in which this run was started before."""
    wanted = Path(request.hydra.run.dir)
    if typed_value(request, "hydra.run.dir") is not None:
        again = again or resume.started_before(request, environ)
        return folder.make_given(wanted, again=again, can_resume=request.verb == "train")
    if name:
        wanted = wanted.parent.with_name(name) / wanted.name
    if run_key is None:
        return folder.make_new(wanted)
    # the name must be the same when the launcher restarts the job later
    return folder.make_new(wanted.with_name(run_key), again=restarted(environ), options=request.typed)
