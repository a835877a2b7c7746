"""Decide on a job: its config, its run folder, and the checkpoint that it continues from.

A training continues an earlier run in three cases: its launcher restarted it or a sweep is resumed, so the run has its
own folder already; resume=PATH names the run; or resume=auto finds it.
"""

import copy
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from imagenet_ddp.cli import check_config, parse
from imagenet_ddp.cli.known_terms import without_removed
from imagenet_ddp.cli.overrides import merge_overrides, typed_config, typed_value
from imagenet_ddp.config.keys import leaves
from imagenet_ddp.config.schema.commands import CommonConfig, RunConfig
from imagenet_ddp.config.schema.trainer import TrainerConfig
from imagenet_ddp.distributed.launchers.detect import restarted
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, num_devices
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.checkpoint_store import CheckpointStore, require_whole
from imagenet_ddp.runs.result_files import read_config

if TYPE_CHECKING:
    from imagenet_ddp.data.sources.base import Source

T = TypeVar("T", bound=CommonConfig)

# Keys that a resumed run must not change: another net, other images or another order would make it a different run.
FIXED_PREFIXES = (
    "model.name", "model._target_", "model.args", "model.library", "model.freeze", "model.unfreeze_epoch",
    "optim.name", "optim._target_", "optim.no_decay_on", "optim.layer_decay", "optim.lr_head", "averaging.name", "seed",
    "data.name", "data._target_", "data.args", "data.train_dir", "data.val_dir", "data.val_fraction", "data.val_fold",
    "data.fold", "data.sampling", "data.repeats", "data.shuffle_window_shards",
)  # fmt: skip

# Keys that can end a training run.
END_PREFIXES = ("trainer.max_epochs", "trainer.max_steps", "trainer.max_time", "callbacks", "budget_min")

# Keys that change how many images an update of the weights has.
BATCH_PREFIXES = ("data.batch_size", "trainer.accumulate_grad_batches", "strategy.name", "strategy.first_device_batch")

# Keys read from the command line only, because a file from elsewhere must not be able to allow code to run.
TYPED_ONLY = ("allow_targets",)

# Keys that belong to this command, such as where its processes meet and which process this is.
OF_THIS_COMMAND = (
    *(f"cluster.{key}" for key in ("name", "address", "job_id", "node_rank", "rank", "local_rank", "world_size")),
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
    update_before: int | None = None  # images per update of the weights before the resume; None for a new run
    keep_update: bool = True  # keep update_before on any number of devices; False if the command sets another batch

    @property
    def program(self) -> str:
        """Return how the command called Python: python, or uv run python."""
        return self.command.partition(" -m ")[0]


def should_requeue(job: Job, signal_number: int, environ: Mapping[str, str]) -> bool:
    """Return whether SLURM should requeue a job that this signal has stopped. Without a checkpoint it should not,
    because the job would start over each time."""
    is_asked = signal_number == signal.SIGUSR2 and "SLURM_JOB_ID" in environ and job.config.cluster.requeue
    return is_asked and bool(CheckpointStore.of_run(job.run_dir).files())


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
    earlier, is_typed = find_earlier(request, environ, run_key), typed_value(request, "hydra.run.dir") is not None
    again = _started_before(request, environ)
    new_folder = partial(
        folder.new_folder, Path(request.hydra.run.dir), is_typed=is_typed, options=request.typed, run_key=run_key,
        can_resume=True,
    )  # fmt: skip
    if earlier.checkpoint is None:
        config, run_dir = _new_config(request, environ), earlier.run_dir
        if run_dir and is_finished(run_dir, config.trainer, changes(read_config(run_dir), config)):
            return _finished(run_dir, config)
        # a run that died before its first checkpoint starts over in its folder
        run_dir = new_folder(again=again or (is_typed and bool(config.resume)))
        messages = (earlier.sentence,) if earlier.sentence else ()
        return Job(config, run_dir, messages=messages, command=command, experiment=experiment)
    from imagenet_ddp.runs.checkpoint_file import KEY, read

    stored = read(earlier.checkpoint)[KEY]
    config = _resumed_config(request, environ, stored["config"], earlier.checkpoint, launch_info, num_local)
    changed = changes(stored["config"], config)
    of_checkpoint = leaves(stored["config"])  # a key that an older version lacked had its default value in that run
    if fixed := [line for key, line in changed.items() if key.startswith(FIXED_PREFIXES) and key in of_checkpoint]:
        hint = "Hint: leave this option out, or start a new run without resume="
        raise ConfigError([f"{line}, but a resumed run keeps its model, data and seed. {hint}" for line in fixed])
    if earlier.run_dir and is_finished(earlier.run_dir, config.trainer, changed):
        return _finished(earlier.run_dir, config)
    return Job(
        config,
        earlier.run_dir or new_folder(again=again),
        earlier.checkpoint.resolve(),
        (earlier.sentence, *(f"Changed: {line}." for line in changed.values())),
        command=command,
        experiment=stored["experiment"] if typed is None else experiment,
        update_before=stored["images_per_update"],
        keep_update=not any(key.startswith(BATCH_PREFIXES) for key in changed),
    )


def _finished(run_dir: Path, config: RunConfig) -> Job:
    epochs, most = folder.summary(run_dir)["epochs"], config.trainer.max_epochs
    hint = "change the option that ended it: trainer.max_steps, trainer.max_time, budget_min or a callback"
    if most is not None and 0 <= most <= epochs:
        hint = f"set trainer.max_epochs={2 * epochs} to continue"
    sentence = f"{run_dir} is finished: {epochs} epochs of {most}. Hint: {hint}."
    return Job(config, run_dir, messages=(sentence,), finished=True)


def _new_config(request: parse.Request, environ: Mapping[str, str]) -> RunConfig:
    """Return the config of a run that starts from its initial weights, with the preprocessing of these weights."""
    config = request.configs[0]
    if not OmegaConf.select(config, "model.weights"):
        return typed_config(config, RunConfig)
    from imagenet_ddp.engine.trained_model import find_other, use_preprocessing

    config = copy.deepcopy(config)
    use_preprocessing(config, request, find_other(typed_config(config, RunConfig).model).facts)
    return checked(config, request, environ, RunConfig)


def _resumed_config(
    request: parse.Request,
    environ: Mapping[str, str],
    stored: Mapping[str, Any],
    checkpoint: Path,
    launch_info: LaunchInfo,
    num_local: int | None,
) -> RunConfig:
    """Return the config of a checkpoint, overridden by the typed options. stored: the config in the checkpoint. Raises
    ConfigError if the run's number of nodes or devices, which it keeps, is not that of nodes that have met already."""
    merged = merge_overrides(stored, request.configs[0], request.typed, (*TYPED_ONLY, *OF_THIS_COMMAND))
    of_run = merged.trainer.num_nodes, num_devices(merged.trainer.devices)
    here = launch_info.num_nodes, num_local
    if any(isinstance(one, int) and other not in (None, one) for one, other in zip(of_run, here, strict=True)):
        raise ConfigError(
            f"{checkpoint} was written with trainer.num_nodes={of_run[0]} trainer.devices={merged.trainer.devices}, "
            f"but this command has trainer.num_nodes={here[0]} trainer.devices={here[1] or 'auto'}. Hint: type the "
            "numbers of nodes and devices, and cluster.address, on each node."
        )
    return checked(merged, request, environ, RunConfig)


def checked(config: DictConfig, request: parse.Request, environ: Mapping[str, str], cls: type[T]) -> T:
    """Return a config that was composed from several sources, typed. Raises ConfigError for all of its mistakes."""
    if mistakes := check_config.validate(config, environ, request.verb, typed=request.typed)[0]:
        raise ConfigError(mistakes)
    return typed_config(config, cls)


# ---- the run to continue -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Earlier:
    """The run that a command continues.

    run_dir: None if there is none, or if the checkpoint is outside of a run folder. checkpoint: None for a fresh start.
    sentence: a line for the log; "" for none.
    """

    run_dir: Path | None = None
    checkpoint: Path | None = None
    sentence: str = ""


def _started_before(request: parse.Request, environ: Mapping[str, str]) -> bool:
    """Return whether this very run was started before: its launcher restarted the job, or its sweep is resumed."""
    return request.again or restarted(environ)


def find_earlier(request: parse.Request, environ: Mapping[str, str], run_key: str | None) -> Earlier:
    """Return the run that this command continues. run_key: name that the launcher gives to the run's folder. Raises
    ConfigError if resume=PATH names no checkpoint, or if all checkpoints are damaged."""
    option, wanted = request.configs[0].resume, Path(request.hydra.run.dir)
    typed_dir = wanted if typed_value(request, "hydra.run.dir") is not None else None
    if _started_before(request, environ):
        own = typed_dir or (folder.made_for(wanted.with_name(run_key), request.typed) if run_key else None)
        if own and CheckpointStore.of_run(own).files():
            return _newest_of(own, "Restarted: continuing from")
        if own and folder.summary(own):  # finished, with callbacks.checkpoint=null
            return Earlier(own)
    if option == "auto":
        return _find_auto(typed_dir, wanted.parent)
    if not option:
        return Earlier()
    found = _find_named(Path(option))
    if typed_dir and found.run_dir and typed_dir.resolve() != found.run_dir.resolve():
        raise ConfigError(
            f"hydra.run.dir must be {found.run_dir} with resume={option}, because a resumed run continues in its own "
            f"folder, got {typed_dir}. Hint: leave hydra.run.dir out, or copy the folder, and resume the copy."
        )
    return found


def _find_named(path: Path) -> Earlier:
    store = CheckpointStore.of_run(path)
    if path.is_dir() and store.files():
        return _newest_of(path, "Resuming from")
    if not path.is_file():
        missing = store.last if path.is_dir() else path
        raise ConfigError(f"resume={path} needs {missing}, which is not a file. Hint: set resume=auto.")
    require_whole(path, "resume")
    return Earlier(CheckpointStore.run_dir_of(path.absolute()), path, f"Resuming from {path}.")


def _find_auto(typed_dir: Path | None, runs: Path) -> Earlier:
    """Return the run in typed_dir, or else the newest unfinished run in `runs`. runs: folder of the runs of this
    name."""
    if typed_dir is not None:
        if CheckpointStore.of_run(typed_dir).files():
            return _newest_of(typed_dir, "resume=auto: continuing from")
        return Earlier(sentence=f"resume=auto: starting a new run, because {typed_dir} has no checkpoint.")
    files = {path: CheckpointStore.of_run(path).files() for path in (runs.iterdir() if runs.is_dir() else ())}
    unfinished = {path: found for path, found in files.items() if found and folder.finished_epochs(path) is None}
    if not unfinished:
        return Earlier(sentence=f"resume=auto: starting a new run, because {runs} has no unfinished one to continue.")
    newest = max(unfinished, key=lambda path: max(file.stat().st_mtime_ns for file in unfinished[path]))
    return _newest_of(newest, "resume=auto: continuing the newest unfinished run from")


def _newest_of(run_dir: Path, why: str) -> Earlier:
    checkpoint, damaged = CheckpointStore.of_run(run_dir).newest_whole()
    return Earlier(run_dir, checkpoint, f"{damaged}{why} {checkpoint}.")


# ---- what a resumed run may change ---------------------------------------------------------------------------------


def changes(stored: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Return key -> "key was A and is now B" for every key that differs."""
    before, after = leaves(without_removed(stored)), leaves(now)
    return {
        key: f"{key} was {before.get(key, 'not set')} and is now {after.get(key, 'not set')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key != "resume" and not key.startswith("sweep.")
    }


def is_finished(run_dir: Path, trainer: TrainerConfig, changed: Iterable[str]) -> bool:
    """Return whether an earlier run has ended, and no changed key prolongs it."""
    if (epochs := folder.finished_epochs(run_dir)) is None:
        return False
    most = trainer.max_epochs
    return (most is not None and 0 <= most <= epochs) or not changes_end(changed)


def changes_end(changed: Iterable[str]) -> bool:
    """Return whether one of these keys can end a training run."""
    return any(key.startswith(END_PREFIXES) for key in changed)


def refuse_other_data(stored: Mapping[str, Any], checkpoint: Path, source: "Source", num_train_images: int) -> None:
    """Raise ConfigError if the images are not those of the checkpoint. stored: this package's entry in it."""
    hint = "Hint: set data.root to the images that this run began with, or start a new run."
    if stored["classes"] != source.classes:
        differing = ", ".join(sorted(set(stored["classes"]) ^ set(source.classes))[:5]) or "their order"
        raise ConfigError(
            f"the data's classes must be the {len(stored['classes'])} classes of {checkpoint}, got "
            f"{len(source.classes)} classes that differ in {differing}. {hint}"
        )
    if stored["num_train_images"] != num_train_images or stored["images_digest"] != source.digest:
        raise ConfigError(
            f"the data must have the {stored['num_train_images']:,} training images that {checkpoint} was trained on, "
            f"in the same order, got {num_train_images:,}, or other names, labels or weights. {hint}"
        )
