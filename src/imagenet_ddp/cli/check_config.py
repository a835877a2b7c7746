"""Validate a composed config: every key, value, folder and launcher, without torch."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp.cli import check_launch, check_run_folder
from imagenet_ddp.cli.compose import Composed, selected
from imagenet_ddp.cli.consequences import independent
from imagenet_ddp.cli.explain import unknown
from imagenet_ddp.cli.overrides import quoted
from imagenet_ddp.cli.photograph_lines import OF_FOLDER
from imagenet_ddp.config import own_code, stored
from imagenet_ddp.config.schema import commands, keys
from imagenet_ddp.config.schema.evaluate import EvaluateConfig
from imagenet_ddp.config.schema.export import ExportConfig
from imagenet_ddp.config.schema.predict import PredictConfig
from imagenet_ddp.config.schema.read_if import unread
from imagenet_ddp.config.schema.run import CommonConfig, TrainedConfig
from imagenet_ddp.config.schema.trainer import REFUSED, refusal
from imagenet_ddp.config.section import to_config
from imagenet_ddp.config.validators import shown
from imagenet_ddp.data import check_data
from imagenet_ddp.data.sources.base import Scan
from imagenet_ddp.data.sources.registry import options_for
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.exported.formats import check_model_file
from imagenet_ddp.mistakes import Fix, Mistake, key_of, setting, without
from imagenet_ddp.models import check_labels, check_learning, check_nets
from imagenet_ddp.runs import check_run
from imagenet_ddp.system import table_files
from imagenet_ddp.system.text import first_sentence

_MISSING = {  # required key -> what to type
    "images": tuple(map(setting, ("images=FOLDER", "images=FILE", "images=FOLDER/*.jpg"))),
    "prepare.name": (
        setting("prepare=check", *OF_FOLDER, "out=checked"),
        *map(setting, ("prepare=relabel", "prepare=pack", "prepare=import", "prepare=imagenet")),
    ),
}


def read(config: DictConfig, verb: str) -> tuple[CommonConfig | None, list[Mistake]]:
    """Return (the composed config as the object that the code reads; mistakes in its keys). None: it cannot be read.
    config: without the hydra node."""
    try:
        plain = _plain(OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException as error:
        hint = "write ${data.name} for the value of a key, or ${oc.env:HOME} for an environment variable"
        what = f"{error.full_key} does not resolve: {first_sentence(error)}"
        return None, [Mistake(what, (str(error.full_key),), hint=hint)]
    if lacking := [field.name for field in dataclasses.fields(commands.COMMANDS[verb]) if field.name not in plain]:
        what = f"the configuration must have all keys of {verb}, but lacks {', '.join(lacking)}"
        return None, [Mistake(what, hint="begin the file of --config-name with `defaults: [train, _self_]`")]
    values = to_config(plain, commands.COMMANDS[verb])
    missing = [
        Mistake(f"{path} is required, but not set", (path,), tuple(_unless_set(fix, plain) for fix in _MISSING[path]))
        for path in OmegaConf.missing_keys(config) & _MISSING.keys()
    ]
    return values, [*missing, *_undeclared(plain, verb), *own_code.validate_targets(values)]


def _unless_set(fix: Fix, plain: Mapping[str, Any]) -> Fix:
    """Return the fix without the options of data, and of a folder, that are set."""
    data = plain["data"]
    if fix.options == ("images=FOLDER",) and data["root"]:
        return Fix((quoted(f"images={data['root']}"),), ("data.root",), is_meant=True)
    has = {OF_FOLDER: data["root"] or data["name"] != "shapes", ("out=checked",): plain.get("out")}
    kept = {option for options, value in has.items() if value for option in options}
    return dataclasses.replace(fix, options=tuple(option for option in fix.options if option not in kept))


class Checked(NamedTuple):
    """place: the launcher around the command, if it is recognised. scan: of the images, if this command opens them.
    values: the config as the object that the code reads; None: it cannot be read."""

    mistakes: list[Mistake]
    place: Place | None = None
    scan: Scan | None = None
    values: CommonConfig | None = None


def check_job(
    job: Composed, environ: Mapping[str, str], verb: str, typed: Sequence[str], *, is_multirun: bool, opens: bool
) -> None:
    """Add to a job of a command on this machine its mistakes, and its place. is_multirun: -m is set. opens: whether
    train and evaluate go on to open the images."""
    config, runs_all = job.config, is_multirun and not _is_one_of_sweep(job.config, environ)
    of_folders = _of_sweep(config, is_multirun) + check_run_folder.run_dir(job.hydra, verb, typed, is_multirun)
    opens = opens and verb in commands.OF_RANKS and not is_multirun
    found = check(config, environ, verb, typed, is_whole=_is_whole(config, verb), multirun=runs_all, opens=opens)
    mistakes, job.place, job.scan, job.values = found
    job.mistakes += independent(mistakes, job.wrong, config, verb, typed) + of_folders
    if not (of_folders or is_multirun):
        job.mistakes += check_run_folder.holds_run(job, environ, verb, typed)


def check_job_elsewhere(job: Composed, environ: Mapping[str, str], typed: Sequence[str], *, is_multirun: bool) -> None:
    """Add to a job its mistakes in the options of a training on other machines, whose GPUs and disks are unknown
    here."""
    config = job.config
    values, found = read(config, "train")
    of_sweep, is_whole = _of_sweep(config, is_multirun), _is_whole(config, "train")
    if values is not None:
        if values.trainer.accelerator == "auto":
            values.trainer.accelerator = "gpu"
        found += _of_keys(values, "train", typed, is_whole)
        found += check_data.validate(values.data, partial=not is_whole)
        if is_whole and (scan := check_data.look(values.data, values.seed, elsewhere=True)):
            found += ConfigError(scan.mistakes).mistakes
        found += check_launch.validate_elsewhere(values, environ)
        found += check_run.validate(values, environ, partial=not is_whole, elsewhere=True)
    job.mistakes += independent(found, job.wrong, config, "train", typed) + of_sweep


def check(
    config: DictConfig,
    environ: Mapping[str, str],
    verb: str,
    typed: Sequence[str],
    *,
    is_whole: bool = True,
    multirun: bool = False,
    opens: bool = False,
) -> Checked:
    """Check the config of a command on this machine.

    config: without the hydra node; that of a command line, or a checkpoint's with the typed options over it. typed: the
    options as typed. is_whole: whether no checkpoint fills in the options that are not typed; else each key is checked
    by itself. multirun: whether this process runs several jobs. opens: whether it opens these images.
    """
    values, found = read(config, verb)
    if values is None:
        return Checked(found)
    more, place, scan, _ = check_values(values, environ, verb, typed, is_whole=is_whole, multirun=multirun, opens=opens)
    return Checked(found + more, place, scan, values)


def check_values(
    values: CommonConfig,
    environ: Mapping[str, str],
    verb: str,
    typed: Sequence[str],
    *,
    is_whole: bool,
    multirun: bool = False,
    opens: bool = False,
    place: Place | None = None,
) -> Checked:
    """Return what check returns, for the typed config. place: that of this command; None: find out."""
    scan = None
    try:
        found = _of_keys(values, verb, typed, is_whole)
        found += check_data.validate(values.data, partial=not is_whole)
        if is_whole and verb != "doctor":  # whose checks look at the images
            opens = opens and not found  # else one image of each class is enough
            scan = check_data.look(values.data, values.seed, purpose=values.purpose, whole=opens)
            found += ConfigError(scan.mistakes if scan else ()).mistakes
            scan = scan if opens else None
        found += _of_files(values) + _of_checkpoint(values, typed)
        if not check_run_folder.goes_on(values, environ):  # else its checkpoint has the weights
            found += check_nets.missing_weights(values, typed)
        if verb in commands.USE_MODEL:
            found += check_model_file.validate(values, verb)
        if isinstance(values, PredictConfig):
            found += table_files.validate(values.format, values.out)
        place, more = check_launch.check(values, environ, place, verb=verb, typed=typed, multirun=multirun)
        elsewhere = place is not None and check_launch.is_elsewhere(place)
        more += check_run.validate(values, environ, verb=verb, partial=not is_whole, elsewhere=elsewhere)
    except OSError as error:  # such as a name that is too long, or a parent folder without search permission
        return Checked([check_run_folder.not_a_path(error)], place, values=values)
    found += more
    if "name" not in map(key_of, typed) and any("model.name" in each.keys for each in found):
        found = [each for each in found if each.keys != ("name",)]  # which has that of the net in it
    return Checked(found, place, scan, values)


def _of_keys(values: CommonConfig, verb: str, typed: Sequence[str], is_whole: bool) -> list[Mistake]:
    found = keys.validate_group("trainer", values.trainer)
    if is_whole or verb in ("prepare", "benchmark"):
        found += unread(typed, values, keys.declared(verb))
    found += check_labels.validate(values, verb) + check_learning.rate_of_another(values, typed) if is_whole else []
    return found + check_learning.validate(values, partial=not is_whole)


def _is_one_of_sweep(config: DictConfig, environ: Mapping[str, str]) -> bool:
    """Return whether this process runs one job of a sweep."""
    only = selected(config, "sweep.job", "auto")
    return isinstance(only, int) or (only == "auto" and slurm.array_task(environ) is not None)


def _is_whole(config: DictConfig, verb: str) -> bool:
    """Return whether no checkpoint fills in the options that are not typed."""
    has_weights = (
        "checkpoint" in config and selected(config, "checkpoint") is None and selected(config, "model.weights")
    )
    is_whole = verb in ("train", "doctor") or bool(has_weights)  # with neither, a checkpoint is to be named
    return is_whole and selected(config, "resume") in (None, "auto")


def _of_sweep(config: DictConfig, is_multirun: bool) -> list[Mistake]:
    only = selected(config, "sweep.job", "auto")
    if only == "auto" or is_multirun:
        return []
    what = f"sweep.job={only} selects jobs of -m, but -m is not set"
    return [Mistake(what, ("sweep.job",), (Fix(("-m",), said="add -m"),))]


def _of_checkpoint(values: CommonConfig, typed: Sequence[str]) -> list[Mistake]:
    """Return a mistake unless a trained net is named once."""
    if not isinstance(values, TrainedConfig):
        return []
    if not (values.checkpoint or values.model.weights):
        runs = check_run.newest_runs()
        fixes = [setting(quoted(f"checkpoint={run}")) for run in runs] or [setting("checkpoint=runs/NAME/TIME")]
        fixes[0] = dataclasses.replace(fixes[0], aim="(the newest run)" * (len(runs) > 1))
        root = values.data.root if values.data.name == "shapes" else None
        layout = map(quoted, options_for(root)) if root else ()
        fixes.append(setting("model.name=resnet18", "model.weights=DEFAULT", *layout))
        return [Mistake("checkpoint is required, but not set", ("checkpoint", "model.weights"), tuple(fixes))]
    if values.checkpoint and "model.weights" in map(key_of, typed) and values.model.weights:
        what = f"model.weights must be null beside checkpoint=, whose weights are used, got {values.model.weights}"
        return [Mistake(what, ("model.weights", "checkpoint"), (without("model.weights"),))]
    return []


def _of_files(config: CommonConfig) -> list[Mistake]:
    """Return a mistake if images= or real_labels= names nothing that can be read."""
    if isinstance(config, PredictConfig | ExportConfig) and config.images is not None:
        from imagenet_ddp.data.sources.walk import validate_images

        return validate_images(config.images)
    if isinstance(config, EvaluateConfig) and config.real_labels:
        from imagenet_ddp.data.sources.imagenet import read_reassessed

        try:
            read_reassessed(Path(config.real_labels))
        except ConfigError as error:
            return error.mistakes
    return []


def _plain(value: Any) -> Any:
    """Return plain containers with None for missing values."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return None if value == MISSING else value


def _undeclared(node: Mapping[str, Any], verb: str, prefix: str = "") -> list[Mistake]:
    """Return a mistake for each key that is not declared, which +KEY=VALUE adds."""
    found, declared = list[Mistake](), keys.declared(verb)
    for key, value in node.items():
        path = f"{prefix}{key}"
        if prefix == "trainer." and key in REFUSED:
            found.append(refusal(key, value))
        elif path not in declared:
            found.append(unknown(path, verb, shown(value)))
        elif declared[path].is_group:
            found += _undeclared(value, verb, f"{path}.")
    return found


def refused_of_stored(config: DictConfig, typed: DictConfig, verb: str, origin: str) -> list[Mistake]:
    """Return what a command must not follow in a stored config. config: the stored one, overridden by what is typed.
    typed: the config of the command line alone. origin: where it is stored, for messages."""
    plain, own = (_plain(OmegaConf.to_container(each, resolve=True)) for each in (config, typed))
    return stored.refused(plain, own, verb, origin, own["allow_targets"] or [])
