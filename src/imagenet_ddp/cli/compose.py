"""Compose a config from options with Hydra's loader, and explain each option that Hydra refuses.

Hydra stops at its first error. If it refuses the options as a whole, they are applied one by one. Does not import
torch.
"""

import contextlib
import json
import os
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf, open_dict

from imagenet_ddp.cli.known_terms import removed, unknown
from imagenet_ddp.cli.read_options import OptionReader, as_text, line_of, simplest
from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.keys import leaves
from imagenet_ddp.config.schema import trainer
from imagenet_ddp.config.validators import shown
from imagenet_ddp.data.sources.registry import TABLE_SUFFIXES, options_for
from imagenet_ddp.errors import ConfigError, causes
from imagenet_ddp.mistakes import Fix, Mistake, must_be, setting, without
from imagenet_ddp.models.check_learning import CLASSIFIERS
from imagenet_ddp.runs.signals import hold_signals
from imagenet_ddp.system.text import first_line, without_secrets

RECIPE_GROUPS = ("optim", "averaging", "model")  # recipes and experiments set keys of these groups
SEARCH_INSTEAD = "leave hydra/sweeper out, and search with `python -m imagenet_ddp.tune`, which uses Optuna"
FREE = ("callbacks.", "logger.", "data.args.", "model.args.", "optim.args.")  # any key below these can be added


def group_values(lines: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Return the values in the files of typed groups as options, which the caller places before the typed options.

    Hydra reads recipe and experiment after the file of the group, so without these options, optim=adamw together with a
    recipe for SGD would be ignored. folders: searched in this order for the file of the group.
    """
    found = []
    for group, _, name in (line.partition("=") for line in lines):
        file_name = name.strip("'") + ".yaml"
        files = [Path(folder, group, file_name) for folder in folders]
        if group in RECIPE_GROUPS and (file := next(filter(Path.is_file, files), None)):
            content: Any = OmegaConf.to_container(OmegaConf.load(file))
            values = {key: value for key, value in (content or {}).items() if key != "defaults"}
            found += [f"{key}={json.dumps(value)}" for key, value in leaves(values, f"{group}.").items()]
    return found


class Composer(OptionReader):
    """Read and compose the options of one command with Hydra's parser and loader."""

    @hold_signals()
    def __init__(self, verb: str, config_name: str, config_dir: str | None):
        """config_dir: the folder of --config-dir, which is searched first."""
        with initialize_config_dir(str(conf_dir()), job_name=verb, version_base="1.3"):
            hydra: Any = GlobalHydra.instance().hydra
            loader: ConfigLoader = hydra.config_loader
        if config_dir is not None:
            search_path = loader.get_search_path()
            path, before_schema = f"file://{Path(config_dir).absolute()}", SearchPathQuery(provider="schema")
            search_path.prepend(provider="command-line", path=path, anchor=before_schema)
            loader = type(hydra.config_loader)(search_path)  # opens its search path when it is made
        super().__init__(verb, config_name, loader)

    # -- jobs

    def jobs(self, overrides: list[Override]) -> tuple[list[list[Override]], list[str], list[Mistake]]:
        """Return (overrides of each job of a sweep, the options that distinguish each job, mistakes)."""
        fixed = [override for override in overrides if not override.is_sweep_override()]
        config, *_ = self.compose(fixed, RunMode.MULTIRUN)
        sweeper = OmegaConf.select(config, "hydra.sweeper") or {}
        if not str(sweeper.get("_target_")).endswith(".BasicSweeper"):
            what = "hydra/sweeper must be basic, because all jobs are checked first"
            return [fixed], [""], [Mistake(what, ("hydra/sweeper",), hint=SEARCH_INSTEAD)]
        for_hydra = [override for override in overrides if override.is_hydra_override()]
        swept = [override for override in overrides if not override.is_hydra_override()]
        try:
            params = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
            [batch] = get_class(sweeper["_target_"]).split_arguments(self.parser.parse_overrides(params) + swept, None)
            if not batch:
                raise HydraException("an option has no value.")
        except (HydraException, ValueError) as error:  # range(1,4,0) is a ValueError
            what = f"the sweep cannot be split into jobs: {first_sentence(error)}"
            return [fixed], [""], [Mistake(what, hint="type the values as a,b,c or range(1,4)")]
        common = set.intersection(*map(set, batch))
        names = [without_secrets(" ".join(line for line in lines if line not in common)) for lines in batch]
        return [[*for_hydra, *self.parser.parse_overrides(lines)] for lines in batch], names, []

    # -- composing

    @hold_signals()
    def compose(
        self, overrides: list[Override], mode: RunMode = RunMode.RUN
    ) -> tuple[DictConfig, list[Mistake], set[str]]:
        """Return (the config of all options that Hydra accepts, mistakes for the others, the groups of which it has the
        default, because the typed choice is a mistake)."""
        # Hydra would silently ignore an unknown recipe, because a data source of your own has none
        recipes = [each for each in overrides if each.key_or_group == "recipe" and isinstance(each.value(), str)]
        found = [self._refused(each, HydraException()) for each in recipes if each.value() not in self._options(each)]
        refused = {"recipe"} if found else set[str]()
        with contextlib.suppress(Exception):  # the mistakes are found below, option by option
            return self._load(overrides, mode), found, refused
        choices = [override for override in overrides if self._is_choice(override)]
        kept = [each for each in choices if each.is_delete() or each.value() in self._options(each)]
        try:
            config = self._load(kept, mode)
        except Exception:
            try:
                config, kept = self._load([], mode), []
            except Exception as error:
                reason, hint = _in_file(error, self.config_name, is_group=True)
                raise ConfigError(Mistake(f"the configuration cannot be composed: {reason}", hint=hint)) from error
        rest = [override for override in overrides if override not in kept]
        for override in sorted(rest, key=self._is_choice, reverse=True):
            key = override.key_or_group
            try:
                if override in choices:
                    config = self._load([*kept, override], mode)
                    kept.append(override)
                else:
                    apply(override, config)
            except Exception as error:
                if override in choices:
                    refused.add(key)
                elif key.startswith(FREE) and {key.partition(".")[0], "experiment"} & refused:
                    continue  # the file that was meant may have the key
                found.append(self._refused(override, error))
        return config, found, refused

    def _load(self, overrides: list[Override], mode: RunMode) -> DictConfig:
        lines = [line_of(override) for override in overrides]
        folders = [str(each.path).removeprefix("file://") for each in self.loader.get_search_path().get_path()]
        values = group_values(lines, folders)
        config = self.loader.load_configuration(self.config_name, [*values, *lines], mode)
        if values:  # Hydra's records show only what was typed
            del config.hydra.overrides.task[: len(values)]
        return config

    # -- explaining

    def _refused(self, override: Override, error: Exception) -> Mistake:
        """Explain an option that does not compose."""
        key, line, value = override.key_or_group, line_of(override), override.value()
        if override.is_delete():
            what = line.lstrip("~")
            required = f"{what} is required{', or not chosen,' if '=' in what else ''} and cannot be deleted"
            is_known = key in self.keys or self._options(override)
            return Mistake(required, (key,), (without(line),)) if is_known else unknown(key, self.keys)
        if self._is_choice(override):
            options = self._options(override)
            if value in options and not override.is_add():
                reason, hint = _in_file(error, f"{key}/{value}", key in self.keys)
                return Mistake(f"{line} cannot be composed: {reason}", (key,), hint=hint)
            return _wrong_choice(key, value, options)
        return self._refused_value(override, value, error)

    def _refused_value(self, override: Override, value: Any, error: Exception) -> Mistake:
        """Explain a key=value that does not merge into the composed config."""
        key, line, declaration = override.key_or_group, line_of(override), self.keys.get(override.key_or_group)
        parent, _, last = key.rpartition(".")
        if parent == "trainer" and last in trainer.REFUSED:
            return trainer.refusal(last, value)
        if declaration and override.is_add():
            bare = line.lstrip("+")
            return Mistake(f"{line}: {key} exists already", (key,), (setting(bare, aim="without +"),))
        if declaration and declaration.type is str and isinstance(value, dict | list):
            typed = as_text(key, line.partition("=")[2])
            fix = Fix((typed,), said=f"put quotes around it: `{shlex.quote(typed)}`")
            return must_be(key, declaration.words, shown(value), fix)
        if declaration and not isinstance(value, dict):
            names = f"{key}.name" in self.keys and value is not None
            fix = Fix((f"{key}.name={value}",), (key,), said=f"set {key}.name={value}") if names else self._fix(key)
            return must_be(key, declaration.words, shown(value), fix)
        if declaration or key.startswith("hydra."):
            reason = first_sentence(error.__cause__ or error)
            return Mistake(
                f"{line} cannot be merged: {reason}", (key,), hint="leave it out, and type each key by itself"
            )
        if key.startswith(FREE) and not removed(key):
            fix = Fix((f"+{line}",), (key,), said=f"type +{line} to add it")
            return Mistake(f"{key} does not exist, so it cannot be changed", (key,), (fix,))
        return unknown(key, self.keys, line.partition("=")[2])


def _wrong_choice(group: str, value: Any, options: list[str]) -> Mistake:
    """Return the mistake of an unknown group=value."""
    name, fix, hint = str(value), without(group), ""
    if instead := removed(f"{group}={name}"):
        fix, hint = None, instead
    elif group == "hydra/sweeper":
        fix, hint = None, SEARCH_INSTEAD
    elif group == "model" and name.lower() in CLASSIFIERS:
        fix = Fix((f"model.name={name.lower()}",), ("model",), said=f"set model.name={name.lower()}")
    elif group == "data" and (os.sep in name or Path(name).is_dir() or Path(name).suffix in TABLE_SUFFIXES):
        fix = setting(*options_for(name))
    elif near := get_close_matches(name.lower(), options, 1):
        fix = setting(f"{group}={near[0]}")
    elif group not in ("experiment", "recipe"):
        fix = setting(f"{group}={simplest(options)}")
    what = f"{group} must be one of {', '.join(options)}, got {shown(value)}"
    return Mistake(what, (group,), (fix,) if fix else (), hint)


def _in_file(error: Exception, name: str, is_group: bool) -> tuple[str, str]:
    """Return (reason, hint) of a mistake in a file in the user's --config-dir. The files of conf/ have none, because
    tests compose them."""
    text = next(filter(None, map(str, causes(error))), type(error).__name__)
    first = "" if is_group else ", whose first line must be `# @package _global_`"
    return " ".join(text.split()).rstrip("."), f"correct {name}.yaml{first}"


def first_sentence(error: BaseException) -> str:
    """Return the first line of an error's text, ending in a full stop."""
    return first_line(error).rstrip(".") + "."


def apply(override: Override, config: DictConfig) -> None:
    """Change one value of a composed config in place. Raises the error of OmegaConf if the value is refused, and
    HydraException if +key exists already."""
    key, value = override.key_or_group, override.value()
    if override.is_delete():
        parent, _, last = key.rpartition(".")
        with open_dict(config):
            del (OmegaConf.select(config, parent) if parent else config)[last]
    elif override.is_add() and not isinstance(value, dict | list) and OmegaConf.select(config, key) is not None:
        raise HydraException(f"{key} exists already.")
    else:
        force_add = override.is_add() or override.is_force_add()
        OmegaConf.update(config, key, value, merge=True, force_add=force_add)
