"""Compose a config from options with Hydra's loader, and explain each option that Hydra refuses.

Hydra stops at its first error. If it refuses the options as a whole, they are applied one by one. Does not import
torch.
"""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf, open_dict

from imagenet_ddp.cli.explain import Explainer, first_sentence, in_file, line_of
from imagenet_ddp.cli.overrides import quote_text
from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.keys import leaves
from imagenet_ddp.data.sources.registry import TABLE_COLUMNS
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.signals import hold_signals

RECIPE_GROUPS = ("optim", "averaging", "model")  # recipes and experiments set keys of these groups


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


class Composer:
    """Read and compose the options of one command with Hydra's parser and loader."""

    @hold_signals()
    def __init__(self, verb: str, config_name: str, config_dir: str | None):
        """config_dir: the folder of --config-dir, which is searched first."""
        with initialize_config_dir(str(conf_dir()), job_name=verb, version_base="1.3"):
            hydra: Any = GlobalHydra.instance().hydra
            self.loader: ConfigLoader = hydra.config_loader
        if config_dir is not None:
            search_path = self.loader.get_search_path()
            path, before_schema = f"file://{Path(config_dir).absolute()}", SearchPathQuery(provider="schema")
            search_path.prepend(provider="command-line", path=path, anchor=before_schema)
            self.loader = type(hydra.config_loader)(search_path)  # opens its search path when it is made
        self.verb, self.config_name = verb, config_name
        self.parser = OverridesParser.create(config_loader=self.loader)
        self.explain = Explainer(verb, self.loader, self._parsed)

    # -- reading

    def quoted(self, words: Sequence[str], *, sweeps: bool) -> list[str]:
        """Return the words of a command line, with quotes around text that Hydra would read as something else."""
        # the names of columns are text
        columns = [f"data.args.{name}" for name in TABLE_COLUMNS] if "data=table" in words else []
        return [quote_text(word, self.verb, self._parsed, columns, sweeps=sweeps) for word in words]

    def read(self, lines: Sequence[str], *, sweeps: bool) -> tuple[list[Override], list[str]]:
        """Return (options, mistakes)."""
        overrides, found, unreadable = [], [], []
        for line in lines:
            override = self._parsed(line)
            if override is None or not override.key_or_group:
                unreadable.append(line)
            elif override.is_sweep_override() and not sweeps:
                found.append(self.explain.sweep_without_m(line, override))
            elif override.is_sweep_override() and override.is_hydra_override():
                found.append(
                    f"{line}: Hydra's own keys cannot be swept. Hint: type one value for {override.key_or_group}."
                )
            else:
                overrides.append(override)
        # only the first: the others are often parts of the same quoted value
        return overrides, [*map(self.explain.unreadable, unreadable[:1]), *found]

    def _parsed(self, line: str) -> Override | None:
        try:
            return self.parser.parse_overrides([line])[0]
        except HydraException:
            return None

    # -- jobs

    def jobs(self, overrides: list[Override]) -> tuple[list[list[Override]], list[str], list[str]]:
        """Return (overrides of each job of a sweep, the options that distinguish each job, mistakes)."""
        fixed = [override for override in overrides if not override.is_sweep_override()]
        config, _ = self.compose(fixed, RunMode.MULTIRUN)
        sweeper = OmegaConf.select(config, "hydra.sweeper") or {}
        if not str(sweeper.get("_target_")).endswith(".BasicSweeper"):
            hint = "Hint: leave hydra/sweeper out; `python -m imagenet_ddp.tune` searches."
            return [fixed], [""], [f"hydra/sweeper must be basic, because all jobs are checked first. {hint}"]
        for_hydra = [override for override in overrides if override.is_hydra_override()]
        swept = [override for override in overrides if not override.is_hydra_override()]
        try:
            params = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
            [batch] = get_class(sweeper["_target_"]).split_arguments(self.parser.parse_overrides(params) + swept, None)
            if not batch:
                raise HydraException("an option has no value.")
        except HydraException as error:
            hint = "Hint: type the values as a,b,c or range(1,4)."
            return [fixed], [""], [f"the sweep cannot be split into jobs: {first_sentence(error)} {hint}"]
        common = set.intersection(*map(set, batch))
        names = [" ".join(line for line in lines if line not in common) for lines in batch]
        return [[*for_hydra, *self.parser.parse_overrides(lines)] for lines in batch], names, []

    # -- composing

    @hold_signals()
    def compose(self, overrides: list[Override], mode: RunMode = RunMode.RUN) -> tuple[DictConfig, list[str]]:
        """Return (the config of all options that Hydra accepts, mistakes for the others)."""
        found = self._dropped(overrides)
        with contextlib.suppress(Exception):  # the mistakes are found below, option by option
            return self._load(overrides, mode), found
        kept: list[Override] = []
        try:
            config = self._load(kept, mode)
        except Exception as error:
            reason = in_file(error, self.config_name, is_typed_group=True)
            raise ConfigError(f"the configuration cannot be composed: {reason}") from error
        choices = [o for o in overrides if "@" in line_of(o) or (self._options(o) and not isinstance(o.value(), dict))]
        values = [o for o in overrides if not any(o is other for other in choices)]
        try:
            config, kept = self._load(choices, mode), choices
        except Exception:
            for override in choices:
                try:
                    config = self._load([*kept, override], mode)
                    kept.append(override)
                except Exception as error:
                    found.append(self.explain.refused_choice(override, self._options(override), error))
        for override in values:
            try:
                apply(override, config)
            except Exception as error:
                found.append(self.explain.refused_value(override, error))
        return config, found

    def _folders(self) -> list[str]:
        return [str(each.path).removeprefix("file://") for each in self.loader.get_search_path().get_path()]

    def _load(self, overrides: list[Override], mode: RunMode) -> DictConfig:
        lines = [line_of(override) for override in overrides]
        values = group_values(lines, self._folders())
        config = self.loader.load_configuration(self.config_name, [*values, *lines], mode)
        if values:  # Hydra's records show only what was typed
            del config.hydra.overrides.task[: len(values)]
        return config

    def _options(self, override: Override) -> list[str]:
        """Return the options of a group in conf/ or in a folder of the search path, [] if the key is not a group."""
        return self.loader.get_group_options(override.key_or_group, config_name=self.config_name)

    def _dropped(self, overrides: list[Override]) -> list[str]:
        """Return a mistake for each unknown recipe. Hydra would silently ignore it, because the group is optional: a
        data source of your own has no recipe."""
        return [
            self.explain.refused_choice(override, options, HydraException())
            for override in overrides
            if override.key_or_group == "recipe" and not override.is_delete()
            if isinstance(override.value(), str) and override.value() not in (options := self._options(override))
        ]


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
