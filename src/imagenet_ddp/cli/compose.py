"""Compose a config in layers: defaults, the recipe of the data, an experiment, what is chosen on the command line, and
its values. Does not import torch."""

import contextlib
import pickle
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp.cli import check_files
from imagenet_ddp.cli.explain import in_file, refused
from imagenet_ddp.cli.explain_words import ways_to_read
from imagenet_ddp.cli.options import HYDRA, Files, Option, Typed
from imagenet_ddp.config.schema import commands
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.section import FREE_KEYS, leaves, typed_config
from imagenet_ddp.data.sources.base import Scan
from imagenet_ddp.data.sources.registry import implied, options_for
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, key_of, setting
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.result_files import read_config

OF_WEIGHTS = ("checkpoint", "model.weights", "teacher.weights")
OF_NET = ("name", "library", "args", "blur_pool")  # keys of model that weights are made for
SHORT_WARMUP = 0.25  # share of a run that has no more epochs than the warm-up of its recipe
RECIPE_GROUPS = ("optim", "averaging", "model")  # recipes and experiments set keys of these groups


@dataclass
class Composed:
    """One job of a command line, composed.

    config: of all options that fit, without the hydra node; interpolations are unresolved. hydra: the hydra node, in
    which they resolve. mistakes: in the other options. wrong: groups of which the config has the default, because the
    typed choice is a mistake. name: with -m, the options that distinguish this job. place: where this command runs it;
    None where no launcher is recognised. scan: of the images, if this command opens them. values: the config as the
    object that the code reads; None until it is checked.
    """

    options: Sequence[Option]
    config: DictConfig
    hydra: DictConfig
    mistakes: list[Mistake]
    wrong: set[str]
    name: str = ""
    place: Place | None = None
    scan: Scan | None = None
    values: CommonConfig | None = None

    @property
    def words(self) -> list[str]:
        return [option.word for option in self.options]


def compose(
    verb: str, files: Files, typed: Typed, wrong: Set[str], meant: Set[str]
) -> tuple[list[Composed], list[Mistake]]:
    """Compose the jobs of a command line. Return (jobs, mistakes in the files of --config-dir). wrong: keys of words
    that are mistakes. meant: the options that correct these."""
    done = [
        replace(_job(verb, files, options, wrong, meant), name=name)
        for options, name in zip(typed.jobs, typed.names, strict=True)
    ]
    if files.own_folder is None:
        return done, []
    in_files = check_files.validate(files, [job.hydra.runtime.choices for job in done], declared(verb))
    for job in done:
        job.wrong.update(key for mistake in in_files for key in mistake.keys)
    return done, in_files


def _job(verb: str, files: Files, options: Sequence[Option], wrong: Set[str], meant: Set[str]) -> Composed:
    """Compose one job in layers: the defaults, the recipe of the data, the experiment, what is chosen on the command
    line, its values, and what follows from the data.

    Hydra puts the files together, up to the experiment. A choice that is typed, such as optim=adamw, is then laid over
    them again, because Hydra reads recipe and experiment after it. If data= is missing, the job is composed as if it
    were typed, to check the options that depend on it.
    """
    resume = next((option.value for option in reversed(options) if option.key == "resume"), None)
    resume = resume if isinstance(resume, str) else None  # else it is refused
    if resume not in (None, "", "auto"):
        options = list(map(_over_stored, options))
    others = {option.word for option in options} | meant
    composed = _in_layers(verb, files, options, others)
    is_to_come = not {"data", "experiment"}.isdisjoint(map(key_of, meant))  # by the correction of another word
    if missing := [] if is_to_come else _missing_data_options(verb, composed, options):
        root = next(option for option in reversed(options) if option.key == "data.root")
        what = (
            f"{root.word} must be typed with data=, which names the layout of that folder; without data=, small images "
            "are generated, and yours are not read"
        )
        ways = ways_to_read(verb, missing, others)
        mistake = Mistake(what, ("data.root", "data"), tuple(setting(*way) for way in ways))
        more, files_of = (word.partition("=") for word in ways[0]), ("data", "experiment")
        typed = [Option(f"{key}={value}", key, "", value, f"{key}={value}" if key in files_of else "", key in files_of)
                 for key, _, value in more]  # fmt: skip
        composed = _in_layers(verb, files, [*options, *typed], others)
        composed.mistakes.insert(0, mistake)
    config = composed.config
    _name_after_own_classes(config)
    if not _takes_stored_data(verb, config):
        with contextlib.suppress(OmegaConfBaseException, OSError):  # the checks report both
            if resume in (None, "auto"):
                config.data.update(implied(typed_config(config.data, DataConfig, partial=True)))
    for key in OF_WEIGHTS:  # the folder of a run means its best checkpoint
        with contextlib.suppress(OSError):  # the checks report it
            if (typed := selected(config, key)) and (path := CheckpointStore.to_use(Path(typed))) != Path(typed):
                OmegaConf.update(config, key, str(path))
    with contextlib.suppress(OmegaConfBaseException, OSError, TypeError):  # the checks report them
        if not {"model", *(f"model.{key}" for key in OF_NET)} & {option.key for option in options}:
            config.model.update(_net_of_run(config.model))
    if "schedule.warmup_epochs" not in leaves({option.key: option.value for option in options}):
        _shorten_warmup(config)
    bare: DictConfig = pickle.loads(pickle.dumps(config))  # takes a third of the time of a copy
    with open_dict(bare):
        bare.pop("hydra", None)
    return Composed(options, bare, config.hydra, composed.mistakes, composed.wrong | wrong)


def _shorten_warmup(config: DictConfig) -> None:
    """Let a warm-up of a recipe take a part of a run that is too short for it, instead of all of it."""
    warmup, epochs = selected(config, "schedule.warmup_epochs"), selected(config, "trainer.max_epochs")
    if isinstance(warmup, int | float) and isinstance(epochs, int) and warmup >= epochs > 0:
        config.schedule.warmup_epochs = SHORT_WARMUP * epochs


def _net_of_run(model: DictConfig) -> dict[str, Any]:
    """Return the options of the net of the run whose weights are named, if no other net is chosen; else {}. A class of
    its author's own is never taken, because that would run their code."""
    usual = ModelConfig()
    is_open = not model._target_ and all(model[key] == usual[key] for key in OF_NET)
    run = CheckpointStore.run_dir_of(Path(model.weights)) if is_open and model.weights else None
    stored = read_config(run).get("model") if run else None
    if not isinstance(stored, Mapping) or stored.get("_target_"):
        return {}
    return {key: stored[key] for key in OF_NET if key in stored}


def _over_stored(option: Option) -> Option:
    """Return an option of a command that resumes a run, so that it can also set, or delete, what only the stored config
    has: an argument of a callback, for example. merge_overrides lays it over that config, which is then checked."""
    if not option.key.startswith(FREE_KEYS):
        return option
    return replace(option, sign="++", value=None if option.sign == "~" else option.value)


class _Layers(NamedTuple):
    config: DictConfig  # with the hydra node
    mistakes: list[Mistake]
    wrong: set[str]


def _in_layers(verb: str, files: Files, options: Sequence[Option], others: Set[str]) -> _Layers:
    chosen = [option for option in options if option.for_hydra]
    if any(each.key == "data._target_" for each in options) and not any(
        each.key in ("data", "recipe") for each in chosen
    ):  # the recipe of the generated images is not that of a source of the user's own
        chosen.append(Option("~recipe", "recipe", "~", None, "~recipe", True))
    job = _of_files(verb, files, chosen, others)
    for option in chosen:
        if option.key in RECIPE_GROUPS and option.key not in job.wrong and not option.sign:
            for path, value in leaves(_content(files, option.key, str(option.value)), f"{option.key}.").items():
                OmegaConf.update(job.config, path, value, merge=True)
    for option in options:
        if option.for_hydra:
            continue
        try:
            _set_value(job.config, option)
        except Exception as error:
            if not (option.key.startswith(FREE_KEYS) and {option.key.partition(".")[0], "experiment"} & job.wrong):
                job.mistakes.append(
                    refused(option, error, verb, files, others)
                )  # else the file that was meant may have it
    _record(job.config, options)
    return job


def _name_after_own_classes(config: DictConfig) -> None:
    """Put the names of the user's own classes into the name of a run, in place of those of the defaults."""
    targets = {group: str(selected(config, f"{group}._target_") or "") for group in ("data", "model")}
    own = {group: target for group, target in targets.items() if target and not target.startswith("imagenet_ddp.")}
    if own and "name" in config:
        name: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, ["name"]), resolve=False)
        for group, target in own.items():
            name["name"] = str(name["name"]).replace(f"${{{group}.name}}", target.rpartition(".")[2])
        config.name = name["name"]


def _takes_stored_data(verb: str, config: DictConfig) -> bool:
    """Return whether the data are those of a checkpoint, or none are needed, unless options say otherwise."""
    has_checkpoint = verb in ("evaluate", "features") and bool(selected(config, "checkpoint"))
    is_open = verb == "evaluate" and not selected(config, "model.weights")  # a checkpoint is to be named
    return verb in commands.USE_MODEL or has_checkpoint or is_open


def _missing_data_options(verb: str, job: _Layers, options: Sequence[Option]) -> list[str]:
    """Return the options to type if data.root is typed without data=. That folder holds the user's images, among which
    the default, data=shapes, would generate its own. Return [] if a checkpoint, an experiment or a _target_ determines
    the data."""
    typed = {option.key for option in options if option.sign != "~"}
    if "data.root" not in typed or {"data", "data.name", "data._target_"} & typed or "experiment" in job.wrong:
        return []
    if _takes_stored_data(verb, job.config) or selected(job.config, "resume") not in (None, "auto"):
        return []
    root, is_generated = selected(job.config, "data.root"), selected(job.config, "data.name") == "shapes"
    return options_for(str(root)) if root and is_generated and not selected(job.config, "data._target_") else []


def selected(config: DictConfig, key: str, default: Any = None) -> Any:
    """Return the value, or the default if the key is missing or does not resolve, which the checks report."""
    try:
        return OmegaConf.select(config, key, default=default)
    except OmegaConfBaseException:
        return default


def _content(files: Files, group: str, name: str) -> Mapping[str, Any]:
    """Return the values in a file, without its list of defaults; {} if there is no such file."""
    path = f"{group}/{name}"
    for source in files.loader.get_sources():
        if source.available() and source.is_config(path):
            content: Any = OmegaConf.to_container(source.load_config(path).config, resolve=False)
            return {key: value for key, value in (content or {}).items() if key != "defaults"}
    return {}


def _of_files(verb: str, files: Files, chosen: Sequence[Option], others: Set[str]) -> _Layers:
    """Compose the files alone. Hydra stops at its first error: if it refuses the choices as a whole, they are added one
    by one. others: all options, for messages."""
    # Hydra would silently ignore an unknown recipe, because a data source of your own has none
    unknown = [each for each in chosen if _is_unknown_name(each, files)]
    found, wrong = (
        [refused(each, HydraException(), verb, files, others) for each in unknown],
        {each.key for each in unknown},
    )
    left, kept = [each for each in chosen if each not in unknown], list[Option]()
    with contextlib.suppress(Exception):  # the mistakes are found below
        return _Layers(files.compose([each.for_hydra for each in left], RunMode.RUN), found, wrong)
    try:
        config = files.compose([], RunMode.RUN)
    except Exception as error:
        reason, hint = in_file(error, files.config_name, is_group=True)
        raise ConfigError(Mistake(f"the configuration cannot be composed: {reason}", hint=hint)) from error
    for option in left:
        try:
            config = files.compose([each.for_hydra for each in (*kept, option)], RunMode.RUN)
            kept.append(option)
        except Exception as error:
            found.append(refused(option, error, verb, files, others))
            wrong.add(option.key)
    return _Layers(config, found, wrong)


def _is_unknown_name(option: Option, files: Files) -> bool:
    is_name = option.is_choice and option.sign != "~" and isinstance(option.value, str) and "@" not in option.key
    return is_name and option.value not in files.names(option.key)


def _set_value(config: DictConfig, option: Option) -> None:
    """Change one value of a composed config in place, as Hydra does. Raises the error of OmegaConf if the value is
    refused, and HydraException if there is nothing to delete, or if +key exists already."""
    key, value = option.key, option.value
    before = OmegaConf.select(config, key) if option.sign in ("~", "+") else None
    if option.sign == "~":
        if before is None or value not in (None, before):
            raise HydraException(f"{key} does not exist, or has another value.")
        parent, _, last = key.rpartition(".")
        with open_dict(config):
            del (OmegaConf.select(config, parent) if parent else config)[last]
    elif option.sign == "+" and before is not None and not isinstance(value, dict | list):
        raise HydraException(f"{key} exists already.")
    else:
        OmegaConf.update(config, key, value, merge=True, force_add=option.sign != "")


def _record(config: DictConfig, options: Sequence[Option]) -> None:
    """Keep the words in hydra.overrides and hydra.job.override_dirname, as Hydra does."""
    own, job = [option for option in options if not option.key.startswith(HYDRA)], config.hydra.job
    words, how = [option.word for option in own], job.config.override_dirname
    kept = sorted(option.word for option in own if option.key not in how.exclude_keys)
    with open_dict(config.hydra):
        config.hydra.overrides.task = words
        job.override_dirname = re.sub("=", how.kv_sep, how.item_sep.join(kept))
