"""Find the run that a command continues, and decide what a resumed run may change.

A training continues an earlier run in three cases: its launcher restarted it or a sweep is resumed, so the run has its
own folder already; resume=PATH names the run; or resume=auto finds it.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_ddp.cli import parse
from imagenet_ddp.cli.overrides import quoted
from imagenet_ddp.config import paths
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.schema.trainer import time_in_s
from imagenet_ddp.config.section import OneOf, leaves
from imagenet_ddp.config.validators import shown
from imagenet_ddp.distributed.launchers.detect import restarted
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, key_of, setting, without
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.checkpoint_store import CheckpointStore, require_whole
from imagenet_ddp.system.text import class_list, count_noun, shorten_list, without_secrets

if TYPE_CHECKING:
    from imagenet_ddp.data.sources.base import Source

# Keys that a resumed run must not change: another net, other images or another order would make it a different run.
FIXED_PREFIXES = (
    "model.name", "model._target_", "model.args", "model.library", "model.freeze", "model.unfreeze_epoch",
    "optim.name", "optim._target_", "optim.no_decay_on", "optim.layer_decay", "optim.lr_head", "averaging.name", "seed",
    "data.name", "data._target_", "data.args", "data.train_dir", "data.val_dir", "data.val_fraction", "data.val_fold",
    "data.groups", "data.fold", "data.sampling", "data.repeats", "data.shuffle_window_shards",
)  # fmt: skip

# Keys that may differ between a run and the command that continues it by resume=auto.
PLACE_PREFIXES = (
    "hydra.", "resume", "cluster", "nccl", "trainer.accelerator", "trainer.devices", "trainer.num_nodes",
    "data.num_workers",
)  # fmt: skip

# Keys that can end a training run.
END_PREFIXES = ("trainer.max_epochs", "trainer.max_steps", "trainer.max_time", "callbacks", "budget_min",
                "trainer.fast_dev_run")  # fmt: skip

# Keys that change how many images an update of the weights has.
BATCH_PREFIXES = ("data.batch_size", "trainer.accumulate_grad_batches", "strategy.name", "strategy.first_device_batch")


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


def find_earlier(request: parse.Request, environ: Mapping[str, str], run_key: str | None) -> Earlier:
    """Return the run that this command continues. run_key: name that the launcher gives to the run's folder. Raises
    ConfigError if resume=PATH names no checkpoint, or if all checkpoints are damaged."""
    option, wanted = request.config.resume, Path(request.hydra.run.dir)
    typed_dir = wanted if request.names_folder else None
    if started_before(request, environ):
        own = typed_dir or (folder.made_for(wanted.with_name(run_key), request.typed) if run_key else None)
        if own and CheckpointStore.of_run(own).files():
            return _newest_of(own, "Restarted: continuing from")
        if own and folder.summary(own):  # finished, with callbacks.checkpoint=null
            return Earlier(own)
    if option == "auto":
        return _find_auto(typed_dir, wanted.parent, request.typed)
    if not option:
        return Earlier()
    found = _find_named(Path(option))
    if typed_dir and found.run_dir and typed_dir.resolve() != found.run_dir.resolve():
        what = (
            f"hydra.run.dir must be {found.run_dir} with resume={option}, because a resumed run continues in its own "
            f"folder, got {typed_dir}"
        )
        hint = "copy the folder, and resume the copy"
        raise ConfigError(Mistake(what, ("hydra.run.dir", "resume"), (without("hydra.run.dir"),), hint))
    return found


def _find_named(path: Path) -> Earlier:
    store = CheckpointStore.of_run(path)
    if path.is_dir() and store.files():
        return _newest_of(path, "Resuming from")
    if not path.is_file():
        missing = store.last if path.is_dir() else path
        what = f"resume={path} needs {missing}, which is not a file"
        raise ConfigError(Mistake(what, ("resume",), (setting("resume=auto"),)))
    require_whole(path, "resume")
    return Earlier(CheckpointStore.run_dir_of(path.absolute()), path, f"Resuming from {path}.")


def _find_auto(typed_dir: Path | None, runs: Path, options: Iterable[str]) -> Earlier:
    """Return the run in typed_dir, or else the newest unfinished run in `runs` that was started with these options.
    runs: folder of the runs of this name. options: as typed."""
    if typed_dir is not None:
        if CheckpointStore.of_run(typed_dir).files():
            return _newest_of(typed_dir, "resume=auto: continuing from")
        return Earlier(sentence=f"resume=auto: starting a new run, because {typed_dir} has no checkpoint.")
    files = {path: CheckpointStore.of_run(path).files() for path in (runs.iterdir() if runs.is_dir() else ())}
    unfinished = {path: found for path, found in files.items() if found and folder.finished_epochs(path) is None}
    if not unfinished:
        return Earlier(sentence=f"resume=auto: starting a new run, because {runs} has no unfinished one to continue.")
    typed_then = {path: folder.options_of(path) for path in unfinished}
    same = [path for path, then in typed_then.items() if then is not None and _of_run(then) == _of_run(options)]
    if not same:
        others = sorted(unfinished, key=lambda path: path.name, reverse=True)
        words = {path: _differences(typed_then[path], options) for path in others}
        listed = shorten_list([f"{path} ({words[path]})" for path in others], 3)
        return Earlier(
            sentence="resume=auto: starting a new run, because none of the unfinished ones was started with these "
            f"options: {listed}. To continue one, set {shlex.quote(quoted(f'resume={others[0]}'))}."
        )
    newest = max(same, key=lambda path: max(file.stat().st_mtime_ns for file in unfinished[path]))
    return _newest_of(newest, "resume=auto: continuing the newest unfinished run of these options from")


def _of_run(options: Iterable[str]) -> dict[str, str]:
    """Return key -> option of those that make a run another one: not those that say where it runs, or whether it is
    resumed. Of a key that was typed twice, the last one counts."""
    stored = map(without_secrets, options)
    return {key_of(option): option for option in stored if not key_of(option).startswith(PLACE_PREFIXES)}


def _differences(then: Iterable[str] | None, now: Iterable[str]) -> str:
    """Return the options of a run that this command does not have, or lacks."""
    if then is None:
        return "its options are not known"
    before, after = _of_run(then), _of_run(now)
    own = [option for key, option in before.items() if after.get(key) != option]
    return ", ".join(own or [f"without {option}" for key, option in after.items() if key not in before])


def _newest_of(run_dir: Path, why: str) -> Earlier:
    checkpoint, damaged = CheckpointStore.of_run(run_dir).newest_whole()
    return Earlier(run_dir, checkpoint, f"{damaged}{why} {checkpoint}.")


def refuse_lost_data(stored: Mapping[str, Any], request: parse.Request) -> None:
    """Raise ConfigError if the images of a stored run are neither where it had them nor typed. stored: this package's
    entry in its checkpoint."""
    is_typed = request.is_typed("data", "data._target_", *paths.DATA)
    if not is_typed and (mistakes := paths.lost_data(stored.get("folder"), stored["config"])):
        raise ConfigError(mistakes)


def changes(stored: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Return key -> "key was A and is now B" for every key that differs."""

    def values(config: Mapping[str, Any]) -> dict[str, Any]:  # an empty group has none
        return {key: value for key, value in leaves(config).items() if value != {}}

    before, after = values(stored), values(without_secrets(now))  # as they are stored
    # of another optimizer or schedule
    unread = {key for key in before.keys() - after.keys() if isinstance(now.get(key.partition(".")[0]), OneOf)}
    return {
        key: f"{key} was {before.get(key, 'not set')} and is now {after.get(key, 'not set')}"
        for key in sorted((before.keys() | after.keys()) - unread)
        if before.get(key) != after.get(key) and key != "resume" and not key.startswith("sweep.")
    }


def is_finished(run_dir: Path, config: CommonConfig, changed: Iterable[str]) -> bool:
    """Return whether an earlier run has ended, and no changed key prolongs it."""
    if not (found := folder.summary(run_dir)):
        return False
    is_over = _reached(found, config.trainer.max_epochs, config.trainer.max_steps)
    return bool(is_over) or not prolongs(found.get("ended_by"), changed)


def _reached(found: Mapping[str, Any], max_epochs: Any, max_steps: Any) -> list[str]:
    """Return which of these limits a finished run has reached. found: its summary.json."""
    limits = {"trainer.max_epochs": ("epochs", max_epochs), "trainer.max_steps": ("steps", max_steps)}
    return [key for key, (name, most) in limits.items() if most is not None and 0 <= most <= found[name]]


def prolongs(ended_by: str | None, changed: Iterable[str]) -> bool:
    """Return whether one of the changed keys is what ended a training. ended_by: result of run_end.ended_by."""
    prefixes = END_PREFIXES
    if ended_by is not None:
        callback = ended_by.rpartition(".")[0]
        prefixes = (callback if callback.startswith("callbacks.") else ended_by,)
    if ended_by == "budget_min":
        prefixes += ("trainer.max_epochs",)
    return any(key.startswith(prefixes) for key in changed)


def way_to_continue(run_dir: Path, config: Mapping[str, Any]) -> str:
    """Return a sentence on what ended a finished run, with what to set to train it further. config: its config,
    plain."""
    found, values = folder.summary(run_dir), leaves(config)
    key = found.get("ended_by") or "trainer.max_epochs"
    reached = _reached(found, values.get("trainer.max_epochs"), values.get("trainer.max_steps"))
    if reached and key not in (*reached, "trainer.fast_dev_run"):  # another value of what ended it is not enough
        key = reached[0]
    value = values.get(key)
    hint = f"set {key}={_more(key, value, found)} to continue"
    if key == "callbacks":
        hint = "leave out the callback of yours that sets trainer.should_stop"
    elif key == "trainer.fast_dev_run":
        hint = "start a new run without it"
    elif (key, value) == ("trainer.max_epochs", 0):  # a probe
        hint = "to train the whole net, start a new run with experiment=finetune"
    done = f"{count_noun(found['epochs'], 'epoch')} and {count_noun(found['steps'], 'step')}"
    of = key if value is None else f"{key}={shown(value)}"
    return f"{run_dir} is finished: {of} ended it after {done}. Hint: {hint}."


def _more(key: str, value: Any, found: Mapping[str, Any]) -> str:
    """Return a value with which the option that ended a run lets it train on."""
    last = key.rpartition(".")[2]
    if last in ("max_epochs", "max_steps"):
        return str(2 * max(found[last.removeprefix("max_")], 1))
    if last == "max_time":
        left_min, rest_s = divmod(round(2 * time_in_s(value)), 60)
        hours, minutes = divmod(left_min, 60)
        return f"{hours // 24:02}:{hours % 24:02}:{minutes:02}:{rest_s:02}"
    if last in ("patience", "budget_min"):
        return f"{2 * max(value or 3, 1):g}"
    return "false" if last == "check_finite" else "null"


def refuse_other_data(stored: Mapping[str, Any], checkpoint: Path, source: "Source", num_train_images: int) -> None:
    """Raise ConfigError if the images are not those of the checkpoint. stored: this package's entry in it."""
    hint = "Hint: set data.root to the images that this run began with, or start a new run."
    if stored["classes"] != source.classes:
        differing = class_list({*stored["classes"]} ^ {*source.classes}) or "their order"
        raise ConfigError(
            f"the data's classes must be the {len(stored['classes'])} classes of {checkpoint}, got "
            f"{len(source.classes)} classes that differ in {differing}. {hint}"
        )
    if stored["num_train_images"] != num_train_images or stored["images_digest"] != source.digest:
        raise ConfigError(
            f"the data must have the {stored['num_train_images']:,} training images that {checkpoint} was trained on, "
            f"in the same order, got {num_train_images:,}, or other names, labels or weights. {hint}"
        )
