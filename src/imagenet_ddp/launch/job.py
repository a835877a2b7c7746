"""Decide on a job: its config, its run folder, and the checkpoint that it continues from."""

import copy
import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig

from imagenet_ddp.cli import check_config, parse
from imagenet_ddp.cli.overrides import follow_image_size, merge_overrides, quoted
from imagenet_ddp.config.schema.evaluate import EvaluateConfig
from imagenet_ddp.config.schema.features import FeaturesConfig
from imagenet_ddp.config.schema.run import CommonConfig, RunConfig
from imagenet_ddp.config.schema.trainer import num_devices
from imagenet_ddp.config.section import leaves, to_plain
from imagenet_ddp.config.stored import to_type
from imagenet_ddp.data.sources.base import Scan
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.launchers.detect import restarts_left
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.resume import (
    BATCH_PREFIXES,
    FIXED_PREFIXES,
    changes,
    find_earlier,
    is_finished,
    refuse_lost_data,
    started_before,
    way_to_continue,
)
from imagenet_ddp.mistakes import Fix, Mistake
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.result_files import read_config
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.say_once import say_once

T = TypeVar("T", bound=CommonConfig)

# Keys read from the command line only, because a file from elsewhere must not be able to allow code to run.
TYPED_ONLY = ("allow_targets",)

# Keys that belong to this command, such as where its processes meet and which process this is.
OF_THIS_COMMAND = (
    *(f"cluster.{key}" for key in ("name", "address", "job_id", "node_rank", "rank", "local_rank", "world_size")),
    "cluster.secret_file",
    "sweep",
)


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
    global_batch_size_before: int | None = None  # images per update before the resume; None for a new run
    keep_global_batch_size: bool = True  # on any number of devices; False if the command sets another batch
    threads_before: tuple[int, int] | None = None  # threads per process, and processes, before the resume
    in_sweep: bool = False
    begin_s: float | None = None  # the time.monotonic() at which this node's command began; None: unknown
    scan: Scan | None = None  # of the images, by this node's command for all its ranks; None: each rank looks itself

    @property
    def has_new_folder(self) -> bool:
        """Whether the run folder was made for this job, not for an earlier one; it is removed if the job is refused."""
        is_kept = isinstance(self.config, FeaturesConfig)  # with what an earlier pass has computed
        return not is_kept and (self.checkpoint is None or isinstance(self.config, EvaluateConfig))


def after_stop(job: Job, place: Place, signal_number: int, environ: Mapping[str, str]) -> bool:
    """Requeue the SLURM job that this signal has stopped, or say how to continue it. Return whether SLURM starts it
    again. Call it on one process, when all ranks have saved."""
    # a job without a checkpoint would start over at each time limit; SLURM itself requeues a preempted one all the same
    is_of_use = signal_number == signal.SIGTERM or bool(CheckpointStore.of_run(job.run_dir).files())
    may_requeue = job.config.cluster.requeue and is_of_use
    if may_requeue and slurm.asks_for_restart(signal_number, environ) and slurm.requeue_and_print(environ):
        return True
    if slurm.has_requeued(environ):
        return True
    say_continue(job, place)
    return False


def after_loss(job: Job, place: Place, environ: Mapping[str, str]) -> None:
    """Say how to continue a run that has lost a rank, unless its launcher starts it again."""
    if not (restarts_left(environ) or slurm.has_requeued(environ)):
        say_continue(job, place)


def say_continue(job: Job, place: Place) -> None:
    """Print the command that continues a run that has ended early, if it has saved. For a sweep, one command
    continues all jobs (stored_sweep.py)."""
    if isinstance(job.config, RunConfig) and not job.in_sweep and CheckpointStore.of_run(job.run_dir).files():
        say_once(f"Continue with: {continue_command(job, place)}", partial(print_message, whole=True))


def continue_command(job: Job, place: Place) -> str:
    """Return the command that continues a stopped run, ready to be typed."""
    # what a checkpoint may not choose, such as own classes and addresses, is typed again
    resume = [quoted(f"resume={job.run_dir}"), *to_type(to_plain(job.config), "train")]
    return f"python -m imagenet_ddp.train {shlex.join(resume)}{_world_words(job.config, place)}"


def _world_words(config: CommonConfig, place: Place) -> str:
    """Return the options with which the same nodes can meet again; "" under a launcher or on one node."""
    if place.num_nodes == 1 or place.launcher not in ("MASTER_ADDR", "cluster.address"):
        return ""
    address = config.cluster.address or f"{place.address}"
    return (
        f" trainer.num_nodes={place.num_nodes} trainer.devices={place.local_world_size} cluster.address={address}"
        " (on each node)"
    )


def decide(request: parse.Request, environ: Mapping[str, str], place: Place, command: str) -> Job:
    """Decide on a training run, and add what is to be said of the SLURM job. Raises ConfigError."""
    warning, job = slurm.short_time_limit(environ), _decide(request, environ, place, command)
    return replace(job, messages=(*job.messages, str(warning))) if warning else job


def _decide(request: parse.Request, environ: Mapping[str, str], place: Place, command: str) -> Job:
    """Decide the config, the run folder and the checkpoint of a training run. Make only the folder, which the caller
    removes if the run does not start. Raises ConfigError if the run cannot be resumed as typed."""
    run_key, options = place.run_key, request.jobs[0].options
    experiment = next((option.value for option in reversed(options) if option.key == "experiment"), None)
    earlier, again = find_earlier(request, environ, run_key), started_before(request, environ)
    new_folder = partial(
        folder.new_folder, Path(request.hydra.run.dir), is_typed=request.names_folder, options=request.typed,
        run_key=run_key, can_resume=True,
    )  # fmt: skip
    if earlier.checkpoint is None:
        config, run_dir = new_config(request, environ, RunConfig), earlier.run_dir
        if run_dir and is_finished(run_dir, config, changes(read_config(run_dir), config)):
            return _finished(run_dir, config)
        # a run that ended before its first checkpoint starts over in its folder
        may_hold_run = again or (request.names_folder and bool(config.resume))
        run_dir = new_folder(again=may_hold_run)
        if may_hold_run:
            _require_own_files(run_dir, config)
        messages = (earlier.sentence,) if earlier.sentence else ()
        return Job(config, run_dir, messages=messages, command=command, experiment=experiment)
    stored = _of_training(earlier.checkpoint, is_net_typed=request.is_typed("model", "model.name", "model._target_"))
    refuse_lost_data(stored, request)
    config = _resumed_config(request, environ, stored["config"], earlier.checkpoint, place)
    changed = changes(stored["config"], config)
    _refuse_fixed(changed, stored["config"])
    if earlier.run_dir and is_finished(earlier.run_dir, config, changed):
        return _finished(earlier.run_dir, config)
    if earlier.run_dir:
        _require_own_files(earlier.run_dir, config)
    return Job(
        config,
        earlier.run_dir or new_folder(again=again),
        earlier.checkpoint.resolve(),
        (earlier.sentence, *(f"Changed: {line}." for line in changed.values())),
        command=command,
        experiment=experiment if request.is_typed("experiment") else stored["experiment"],
        global_batch_size_before=stored["images_per_update"],
        keep_global_batch_size=not any(key.startswith(BATCH_PREFIXES) for key in changed),
        threads_before=stored["threads"],
    )


def _of_training(checkpoint: Path, *, is_net_typed: bool) -> Mapping[str, Any]:
    """Return what this project stores in a checkpoint. Raises ConfigError if a training cannot be resumed from it.
    is_net_typed: whether the command names its net."""
    from imagenet_ddp.models.weights.pretrained import net_of_file
    from imagenet_ddp.runs.checkpoint_file import KEY, OF_TRAINING, is_own, read

    if not is_own(checkpoint) and (named := net_of_file(checkpoint)) is not None:
        what = f"resume={checkpoint} must be a checkpoint of imagenet_ddp, got weights of another program"
        options = quoted(f"model.weights={checkpoint}"), *([] if is_net_typed else named or ["model.name=NAME"])
        aim = "to begin with its weights; its epoch and optimizer cannot be continued"
        raise ConfigError(Mistake(what, ("resume", "model.weights"), (Fix(options, ("resume",), aim),)))
    stored = read(checkpoint)[KEY]
    if missing := [name for name in OF_TRAINING if name not in stored]:
        raise ConfigError(
            f"{checkpoint} must be a complete checkpoint of a training, but lacks {', '.join(missing)}. "
            "Hint: resume from another checkpoint of that run, such as previous.ckpt."
        )
    return stored


def _refuse_fixed(changed: Mapping[str, str], stored: Mapping[str, Any]) -> None:
    """Raise ConfigError if an option is changed that a resumed run keeps. stored: the config of the checkpoint."""
    of_checkpoint = leaves(stored)
    fixed = [
        line
        for key, line in changed.items()
        if key.startswith(FIXED_PREFIXES) and (key in of_checkpoint or ".args." in key)  # older ones lack new keys
    ]
    if fixed:
        rule = "a resumed run keeps its model, optimizer, data and seed"
        hint = "Hint: leave this option out, or start a new run without resume="
        raise ConfigError([f"{line}, but {rule}. {hint}" for line in fixed])


def _require_own_files(run_dir: Path, config: RunConfig) -> None:
    """Raise ConfigError if a run in this folder would write through links to files elsewhere."""
    folder.refuse_links(run_dir)
    if (store := CheckpointStore.of_run(run_dir)).folder.is_symlink():
        store.require_place(CheckpointStore.planned(config.callbacks, run_dir).folder)


def _finished(run_dir: Path, config: RunConfig) -> Job:
    return Job(config, run_dir, messages=(way_to_continue(run_dir, to_plain(config)),), finished=True)


def new_config(request: parse.Request, environ: Mapping[str, str], cls: type[T]) -> T:
    """Return the config of a run that starts from its initial weights, with the preprocessing of these weights. cls:
    the command's class of config."""
    typed = request.values(cls)
    if not typed.model.weights:
        return typed
    from imagenet_ddp.launch.trained_model import find_other, use_preprocessing
    from imagenet_ddp.models.weights.download import DownloadError

    config = copy.deepcopy(request.config)
    try:
        found = find_other(typed.model)
    except DownloadError as error:
        if cls is not RunConfig:
            raise
        scratch = "set model.weights=null to train from scratch, which on few images is far less accurate"
        raise ConfigError([replace(each, hint=scratch) for each in error.mistakes]) from error
    use_preprocessing(config, request, found.facts)
    return checked(config, request, environ, cls)


def _resumed_config(
    request: parse.Request,
    environ: Mapping[str, str],
    stored: Mapping[str, Any],
    checkpoint: Path,
    place: Place,
) -> RunConfig:
    """Return the config of a checkpoint, overridden by the typed options. stored: the config in the checkpoint. Raises
    ConfigError if the run's number of nodes or devices, which it keeps, is not that of the commands."""
    merged = merge_overrides(stored, request.config, request.typed, (*TYPED_ONLY, *OF_THIS_COMMAND))
    follow_image_size(merged.data, request.typed, stored["data"]["image_size"], stored["data"].get("val_resize"))
    if merged.model.weights and merged.model.weights == stored["model"].get("weights"):
        _keep_preprocessing(merged, request, stored["data"])
    of_run = merged.trainer.num_nodes, num_devices(merged.trainer.devices)
    is_counted = place.is_alone or place.local_world_size > 0  # else once the ranks have met
    num_local = place.local_world_size if place.is_node and not place.is_alone else None
    here = place.num_nodes if is_counted else None, num_local
    if any(isinstance(one, int) and other not in (None, one) for one, other in zip(of_run, here, strict=True)):
        raise ConfigError(
            f"{checkpoint} was written with trainer.num_nodes={of_run[0]} trainer.devices={merged.trainer.devices}, "
            f"but this command has trainer.num_nodes={here[0]} trainer.devices={here[1] or 'auto'}. Hint: type the "
            "numbers of nodes and devices, and cluster.address, on each node."
        )
    return checked(merged, request, environ, RunConfig, checkpoint)


def _keep_preprocessing(config: DictConfig, request: parse.Request, before: Mapping[str, Any]) -> None:
    """Set the keys of data.* that a run took from its weights, in place: a typed experiment= or data= has the defaults
    instead, and a resumed run does not look at the weights again. before: the run's data.*, plain."""
    from imagenet_ddp.launch.trained_model import use_preprocessing
    from imagenet_ddp.models.weights.facts import PREPROCESSING, Facts

    seen = {key: before.get(key) for key in PREPROCESSING}
    if None not in seen.values():  # else the weights did not say it
        use_preprocessing(config, request, Facts(data=seen))


def checked(
    config: DictConfig,
    request: parse.Request,
    environ: Mapping[str, str],
    cls: type[T],
    stored_in: Path | None = None,
) -> T:
    """Return a config that was composed from several sources, typed. Raises ConfigError for all of its mistakes.
    stored_in: the checkpoint of which the config is, overridden by the typed options; None: all of it is typed."""
    found = check_config.check(config, environ, request.verb, request.typed)
    mistakes = found.mistakes
    if stored_in is not None:
        mistakes = check_config.refused_of_stored(config, request.config, request.verb, str(stored_in)) + mistakes
    if mistakes:
        raise ConfigError(mistakes)
    assert isinstance(found.values, cls)
    return found.values
