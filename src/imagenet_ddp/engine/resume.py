"""Decide whether a command continues an earlier run, from which checkpoint, and what may differ from that run.

A command continues an earlier run in three cases: its launcher restarted it or a sweep is resumed, so the run has its
own folder already; resume=PATH names the run; or resume=auto finds it.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_ddp.cli import parse
from imagenet_ddp.cli.known_terms import without_removed
from imagenet_ddp.cli.overrides import quoted, typed_value
from imagenet_ddp.config.keys import leaves
from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.config.schema.trainer import TrainerConfig
from imagenet_ddp.distributed.launchers.detect import restarted
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, num_devices
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.checkpoints import CheckpointStore, require_whole
from imagenet_ddp.system.text import count_noun

if TYPE_CHECKING:
    from imagenet_ddp.data.sources.base import Source

# Keys that a resumed run must not change: another net, other images or another order would make it a different run.
FIXED_PREFIXES = (
    "model.name", "model._target_", "model.args", "model.library", "model.freeze", "model.unfreeze_epoch",
    "optim.name", "optim._target_", "optim.no_decay_on", "optim.layer_decay", "optim.lr_head", "averaging.name", "seed",
    "data.name", "data._target_", "data.args", "data.train_dir", "data.val_dir", "data.val_fraction", "data.val_fold",
    "data.fold", "data.sampling", "data.repeats", "data.shuffle_window_shards",
)  # fmt: skip

# Keys that can end a training run.
END_PREFIXES = ("trainer.max_epochs", "trainer.max_steps", "trainer.max_time", "callbacks", "budget_min")

# Keys read from the command line only, because a file from elsewhere must not be able to allow code to run.
TYPED_ONLY = ("allow_targets",)

# Keys that belong to this command, such as where its processes meet and which process this is.
OF_THIS_COMMAND = (
    *(f"cluster.{key}" for key in ("name", "address", "job_id", "node_rank", "rank", "local_rank", "world_size")),
    "sweep",
    "show",
)


@dataclass(frozen=True)
class Earlier:
    """The run that a command continues.

    run_dir: None if there is none, or if the checkpoint is outside of a run folder. checkpoint: None for a fresh start.
    sentence: a line for the log; "" for none.
    """

    run_dir: Path | None = None
    checkpoint: Path | None = None
    sentence: str = ""


def started_before(request: parse.Request, environ: Mapping[str, str]) -> bool:
    """Return whether this very run was started before: its launcher restarted the job, or its sweep is resumed."""
    return request.again or restarted(environ)


def find(request: parse.Request, environ: Mapping[str, str], run_key: str | None) -> Earlier:
    """Return the run that this command continues. run_key: name that the launcher gives to the run's folder. Raises
    ConfigError if resume=PATH names no checkpoint, or if all checkpoints are damaged."""
    option, wanted = request.configs[0].resume, Path(request.hydra.run.dir)
    typed_dir = wanted if typed_value(request, "hydra.run.dir") is not None else None
    if started_before(request, environ):
        own = typed_dir or (folder.made_for(wanted.with_name(run_key), request.typed) if run_key else None)
        if own and CheckpointStore.of_run(own).files():
            return _newest_of(own, "Restarted: continuing from", ".")
        if own and folder.summary(own):  # finished, with callbacks.checkpoint=null
            return Earlier(own)
    if option == "auto":
        return _find_auto(typed_dir, wanted.parent)
    if not option:
        return Earlier()
    found = _find_named(Path(option))
    if typed_dir and found.run_dir and typed_dir.resolve() != found.run_dir.resolve():
        raise ConfigError(
            f"hydra.run.dir must be {found.run_dir} with resume={option}, because a resumed run continues in "
            f"its own folder, got {typed_dir}. Hint: leave hydra.run.dir out, or continue a copy: run "
            f"`{shlex.join(['cp', '-r', str(found.run_dir), str(typed_dir)])}`, then set "
            f"{quoted(f'resume={typed_dir}')}."
        )
    return found


def _find_named(path: Path) -> Earlier:
    store = CheckpointStore.of_run(path)
    if path.is_dir() and store.files():
        checkpoint, damaged = store.newest_whole()
    elif path.is_file():
        checkpoint, damaged = path, ""
        require_whole(checkpoint, "resume")
    else:
        raise ConfigError(
            f"resume={path} must be a checkpoint or a run folder with a checkpoint, but "
            f"{store.last if path.is_dir() else path} is not a file. Hint: set resume=auto."
        )
    run_dir = CheckpointStore.run_dir_of(checkpoint.absolute())
    return Earlier(run_dir, checkpoint, f"{damaged}Resuming from {checkpoint} (as set by resume=).")


def _find_auto(typed_dir: Path | None, runs: Path) -> Earlier:
    """Return the run in typed_dir, or else the newest unfinished run in `runs`. runs: folder of the runs of this
    name."""
    if typed_dir is not None:
        if CheckpointStore.of_run(typed_dir).files():
            return _newest_of(typed_dir, "resume=auto: continuing from", " (hydra.run.dir).")
        return Earlier(sentence=f"resume=auto: starting a new run, because {typed_dir} has no checkpoint.")
    files = {path: CheckpointStore.of_run(path).files() for path in (runs.iterdir() if runs.is_dir() else ())}
    saved = {path: found for path, found in files.items() if found}
    unfinished = {path: found for path, found in saved.items() if folder.finished_epochs(path) is None}
    if not unfinished:
        why = "that has a checkpoint is unfinished" if saved else "has a checkpoint"
        return Earlier(sentence=f"resume=auto: starting a new run, because no run in {runs} {why}.")
    newest = max(unfinished, key=lambda path: max(file.stat().st_mtime_ns for file in unfinished[path]))
    return _newest_of(newest, "resume=auto: continuing from", f", the newest unfinished run in {runs}.")


def _newest_of(run_dir: Path, before: str, after: str) -> Earlier:
    checkpoint, damaged = CheckpointStore.of_run(run_dir).newest_whole()
    return Earlier(run_dir, checkpoint, f"{damaged}{before} {checkpoint}{after}")


def changes(stored: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Return key -> "key was A and is now B" for every key that differs."""
    before, after = leaves(without_removed(stored)), leaves(now)
    return {
        key: f"{key} was {before.get(key, 'not set')} and is now {after.get(key, 'not set')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key not in ("resume", "show") and not key.startswith("sweep.")
    }


def refuse_other_run(stored: Mapping[str, Any], changed: Mapping[str, str]) -> None:
    """Raise ConfigError if a key has changed that makes it a different run. stored: config of the checkpoint."""
    of_checkpoint = leaves(stored)  # a key that an older version lacked had its default value in that run
    fixed = [line for key, line in changed.items() if key.startswith(FIXED_PREFIXES) and key in of_checkpoint]
    if fixed:
        raise ConfigError(
            [
                f"{line}, but a resumed run keeps its model, data and seed. "
                "Hint: leave this option out, or start a new run without resume="
                for line in fixed
            ]
        )


def refuse_other_world(
    trainer: Mapping[str, Any], checkpoint: Path, launch_info: LaunchInfo, num_local: int | None
) -> None:
    """Raise ConfigError if the resumed run's number of nodes or devices does not match this command. The run keeps its
    own numbers unless others are typed, but nodes that have already joined cannot change theirs. num_local: devices of
    each node that has joined."""
    num_nodes, devices = trainer["num_nodes"], num_devices(trainer["devices"])
    if isinstance(num_nodes, int) and num_nodes != launch_info.num_nodes:
        raise ConfigError(
            f"{checkpoint} was written with trainer.num_nodes={num_nodes}, but this command has "
            f"{count_noun(launch_info.num_nodes, 'node')}. Hint: set trainer.num_nodes={num_nodes} and cluster.address "
            f"on each node, or set trainer.num_nodes={launch_info.num_nodes}."
        )
    if num_local is not None and devices is not None and devices != num_local:
        raise ConfigError(
            f"{checkpoint} was written with trainer.devices={devices}, but each node has "
            f"{count_noun(num_local, 'device')}. Hint: set trainer.devices={devices} or trainer.devices={num_local} on "
            "each node."
        )


def is_finished(run_dir: Path | None, trainer: TrainerConfig, changed: Iterable[str]) -> bool:
    """Return whether an earlier run has ended, and no changed key prolongs it."""
    epochs = folder.finished_epochs(run_dir) if run_dir is not None else None
    if epochs is None:
        return False
    most = trainer.max_epochs
    return (most is not None and 0 <= most <= epochs) or not changes_end(changed)


def changes_end(changed: Iterable[str]) -> bool:
    """Return whether one of these keys can end a training run."""
    return any(key.startswith(END_PREFIXES) for key in changed)


def finished_sentence(run_dir: Path, config: CommonConfig) -> str:
    """Return the sentence on a finished run, which explains how to continue it."""
    most, epochs = config.trainer.max_epochs, folder.summary(run_dir)["epochs"]
    hint = "change the option that ended it: trainer.max_steps, trainer.max_time, budget_min or a callback"
    if most is not None and 0 <= most <= epochs:
        hint = f"set trainer.max_epochs={2 * epochs} to continue"
    return f"{run_dir} is finished: {epochs} epochs of {most}. Hint: {hint}."


def refuse_other_data(stored: Mapping[str, Any], checkpoint: Path, source: "Source", num_train_images: int) -> None:
    """Raise ConfigError if the images are not those of the checkpoint. stored: this package's entry in it."""
    hint = "Hint: set data.root to the images that this run began with, or start a new run."
    if stored["classes"] != source.classes:
        differing = sorted(set(stored["classes"]) ^ set(source.classes))[:5]
        found = f"{len(source.classes)} classes that differ in {', '.join(differing)}"
        raise ConfigError(
            f"the data's classes must be the {len(stored['classes'])} classes of {checkpoint}, got "
            f"{found if differing else 'them in another order'}. {hint}"
        )
    if stored["num_train_images"] != num_train_images or stored["images_digest"] != source.digest:
        raise ConfigError(
            f"the data must have the {stored['num_train_images']:,} training images that {checkpoint} was trained on, "
            f"in the same order, got {num_train_images:,}, or other names, labels or weights. {hint}"
        )


def refuse_nothing_left(stored: Mapping[str, Any], checkpoint: Path, run_dir: Path, max_epochs: int | None) -> None:
    """Raise ConfigError if no epochs are left to train."""
    # the run of a last.ckpt in its own folder may not have written its summary.json yet
    in_place = checkpoint.resolve().parent == CheckpointStore.of_run(run_dir).folder.resolve()
    done = stored["epoch"] + (stored["kind"] == "epoch_end" and not in_place)
    if max_epochs is not None and 0 <= max_epochs <= done:
        raise ConfigError(
            f"trainer.max_epochs must be more than the {count_noun(done, 'epoch')} that {checkpoint} has "
            f"completed, got {max_epochs}. Hint: set trainer.max_epochs={done + 1} or more, or start a new run."
        )
