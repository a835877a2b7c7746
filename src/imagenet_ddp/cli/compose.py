"""Hydra's reader and loader, asked option by option where they refuse the whole: Hydra itself stops at its first
error. No torch."""

import os
import re
import shlex
import typing
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString, ValueType
from hydra.core.utils import JobRuntime, setup_globals
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from imagenet_ddp.cli import known_terms
from imagenet_ddp.cli.suggest import closest, unknown
from imagenet_ddp.config import keys, schema, trainer_options
from imagenet_ddp.config.validators import shown
from imagenet_ddp.data.sources.detect import name_of, options_for
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.torchvision_names import CLASSIFIERS


class Composer:
    """Hydra's own reader and loader for one verb, asked option by option where they refuse the whole."""

    def __init__(self, verb: str, config_name: str, config_dir: str | None):
        version.setbase("1.3")
        setup_globals()
        JobRuntime().set("name", verb)
        search_path = create_config_search_path(str(schema.conf_dir()))
        if config_dir is not None:
            path, behind_schema = f"file://{Path(config_dir).absolute()}", SearchPathQuery(provider="schema")
            search_path.prepend(provider="command-line", path=path, anchor=behind_schema)
        self.config_name = config_name
        self.keys = keys.declared(verb)
        self.loader = ConfigLoaderImpl(search_path)
        self.parser = OverridesParser.create(config_loader=self.loader)

    # -- reading

    def read(self, lines: Sequence[str], *, sweeps: bool) -> tuple[list[Override], list[str]]:
        """(what Hydra's grammar can read, mistakes). Where a quoted form is proposed, the checks go on with that."""
        overrides, found = [], []
        for line in lines:
            override = self._parsed(line)
            if override is None or not override.key_or_group:
                text, proposal = self._unreadable(line)
                found.append(text)
                override = self._parsed(proposal) if proposal else None
            elif override.is_sweep_override() and not sweeps:
                text, proposal = self._sweep_without_m(line, override)
                found.append(text)
                override = self._parsed(proposal) if proposal else None
            elif override.is_sweep_override() and override.is_hydra_override():
                found.append(f"{line}: Hydra's own keys cannot be swept. Hint: one value for {override.key_or_group}.")
                override = None
            if override is not None:
                overrides.append(override)
        return overrides, found

    def _parsed(self, line: str) -> Override | None:
        try:
            return self.parser.parse_overrides([line])[0]
        except HydraException:
            return None

    def _unreadable(self, line: str) -> tuple[str, str | None]:
        """(sentence, the form that can be read and means the same)."""
        key, equals, value = line.partition("=")
        bare = key.lstrip("+~")
        if not equals or not bare:
            close = closest(bare or value, self.keys)
            hint = ""
            if close:
                is_key = close[0].rpartition(".")[2] == bare
                hint = f"did you mean {self._hint(close[0]) if is_key else f'{close[0]}={bare}'}?"
            return f"{shlex.quote(line)} must be key=value. Hint: {hint or '`--help` shows examples.'}", None
        if bare not in self.keys and not re.fullmatch(r"[\w./@:$-]+", bare, re.ASCII):
            return unknown(bare, self.keys), None
        key_type = self.keys[bare].type if bare in self.keys else str
        if key_type is not str and key_type is not Any:
            words = self.keys[bare].words
            return f"{bare} must be {words}, but cannot be read: {value}. Hint: set {self._hint(bare)}.", None
        if value.startswith("~"):  # no shell expands it there
            value = str(Path(value).expanduser())
            if self._parsed(f"{key}={value}") is not None:
                return f"{line}: ~ is not expanded there. Hint: {shlex.quote(f'{key}={value}')}", f"{key}={value}"
        proposal = f"{key}={QuotedString(value, Quote.double).with_quotes()}"
        if "${" in value or self._parsed(proposal) is None:
            return (
                f"{shlex.quote(line)} cannot be read by Hydra's grammar. Hint: put the value in quotes of its own.",
                None,
            )
        return (
            f"{line} cannot be read by Hydra's grammar, which wants special characters quoted. "
            f"Hint: `{shlex.quote(proposal)}`",
            proposal,
        )

    def _sweep_without_m(self, line: str, override: Override) -> tuple[str, str | None]:
        key, _, value = line.partition("=")
        bare = key.lstrip("+~")
        one_by_one = "add -m to run one after the other"
        text = f"{line} has several values, but -m is not set. Hint: "
        if override.value_type != ValueType.SIMPLE_CHOICE_SWEEP or self.loader.repository.group_exists(bare):
            return f"{text}{one_by_one}.", None
        key_type = self.keys[bare].type if bare in self.keys else str
        listed = f"`{shlex.quote(f'{key}=[{value}]')}`"
        if bare == "trainer.devices":
            return f"{text}{listed} for GPUs {value.replace(',', ' and ', 1)} together, or {one_by_one}.", None
        if typing.get_origin(key_type) is list:
            return f"{text}{listed}, or {one_by_one}.", f"{key}=[{value}]"
        if key_type is str:
            proposal = f"{key}={QuotedString(value, Quote.double).with_quotes()}"
            return f"{text}`{shlex.quote(proposal)}` for one value with a comma, or {one_by_one}.", proposal
        return f"{text}{one_by_one}.", None

    # -- jobs

    def jobs(self, overrides: list[Override]) -> tuple[list[list[Override]], list[str], list[str]]:
        """(overrides of each job of a sweep, what tells it from the others, mistakes).

        Another sweeper than Hydra's own chooses its values later: then there is one job, without what is swept.
        """
        fixed = [override for override in overrides if not override.is_sweep_override()]
        config, _ = self.compose(fixed, RunMode.MULTIRUN)
        sweeper = config.hydra.sweeper
        if OmegaConf.is_missing(config.hydra, "sweeper") or not str(sweeper.get("_target_")).endswith(".BasicSweeper"):
            return [fixed], [""], []
        for_hydra = [override for override in overrides if override.is_hydra_override()]
        swept = [override for override in overrides if not override.is_hydra_override()]
        try:
            params = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
            batch = BasicSweeper.split_arguments(self.parser.parse_overrides(params) + swept, None)[0]
        except HydraException as error:
            return (
                [fixed],
                [""],
                [f"the sweep cannot be made: {first_line(error)} Hint: a,b,c or range(1,4) as values."],
            )
        common = set.intersection(*map(set, batch))
        names = [" ".join(line for line in lines if line not in common) for lines in batch]
        return [[*for_hydra, *self.parser.parse_overrides(lines)] for lines in batch], names, []

    # -- composing

    def compose(self, overrides: list[Override], mode: RunMode = RunMode.RUN) -> tuple[DictConfig, list[str]]:
        """(the config of all options that Hydra takes, mistakes for the others)."""
        try:
            return self._load(overrides, mode), self._dropped(overrides)
        except Exception:  # whatever it is, it is looked for option by option
            pass
        found = self._dropped(overrides)
        search = [override for override in overrides if override.key_or_group == "hydra.searchpath"]
        kept = list(search)
        try:
            config = self._load(kept, mode)
        except MissingConfigException as error:
            hint = "Hint: --config-dir FOLDER, where it lies, or leave --config-name out."
            raise ConfigError(f"the configuration cannot be composed: {first_line(error)} {hint}") from error
        except Exception as error:
            raise ConfigError(f"the configuration cannot be composed: {self._inside(error, 'config')}") from error
        repository = self.loader._parse_overrides_and_create_caching_repo(self.config_name, _lines(kept))[1]
        choices = [
            o for o in overrides if "@" in _line(o) or (repository.group_exists(o.key_or_group) and not _is_dict(o))
        ]
        values = [o for o in overrides if not any(o is other for other in [*choices, *search])]
        try:
            config, kept = self._load(kept + choices, mode), kept + choices
        except Exception:
            for override in choices:
                try:
                    config = self._load([*kept, override], mode)
                    kept.append(override)
                except Exception as error:
                    options = repository.get_group_options(override.key_or_group)
                    found.append(self._refused_choice(override, options, error))
                    if meant := _meant(override.key_or_group, str(override.value()), options):
                        # go on as if that had been typed, so that what hangs on it is looked at too
                        meant = self._parsed(f"{override.key_or_group}={meant}")
                        try:
                            config = self._load([*kept, meant], mode) if meant else config
                            kept += [meant] if meant else []
                        except Exception:
                            pass
        for override in values:
            try:
                ConfigLoaderImpl._apply_overrides_to_config([override], config)
            except Exception as error:
                found.append(self._refused_value(override, error))
        return config, found

    def _load(self, overrides: list[Override], mode: RunMode) -> DictConfig:
        return self.loader.load_configuration(self.config_name, _lines(overrides), mode)

    def _dropped(self, overrides: list[Override]) -> list[str]:
        """The recipe is optional, so that own data need none; Hydra would drop a mistyped one in silence."""
        options = self.loader.repository.get_group_options("recipe")
        typed = [override for override in overrides if override.key_or_group == "recipe" and not override.is_delete()]
        return [
            self._refused_choice(override, options, MissingConfigException("no such recipe"))
            for override in typed
            if isinstance(override._value, str) and override._value not in options
        ]

    def _refused_choice(self, override: Override, options: list[str], error: Exception) -> str:
        """A choice in a group (data=...) that did not compose."""
        group, value = override.key_or_group, override.value() if not override.is_delete() else None
        if override.is_delete():
            none = f" Hint: {group}=none." if "none" in options else f" Hint: leave {_line(override)} out."
            return f"{group} is needed and cannot be deleted.{none}"
        if isinstance(value, str) and value in options:
            if override.is_add():
                return f"{_line(override)}: {group} is chosen already. Hint: {group}={value}, without +."
            if "Could not override" in str(error):
                return f"{_line(override)} cannot be composed: {first_line(error)} Hint: leave it out."
            return f"{_line(override)} cannot be composed: {self._inside(error, group + '/' + value)}"
        if isinstance(error, MissingConfigException) or not isinstance(value, str):
            hint = self._for_choice(group, str(value), options)
            return f"{group} must be one of {', '.join(options)}, got {shown(value)}. Hint: {hint}."
        return f"{_line(override)} cannot be composed: {first_line(error)} Hint: leave it out."

    def _for_choice(self, group: str, value: str, options: list[str]) -> str:
        """What to type instead of group=value."""
        if group == "model" and value.lower() in CLASSIFIERS:
            return f"set model.name={value.lower()}"
        if group == "optim" and value.lower() in known_terms.OPTIMISERS:
            return f"set {known_terms.OPTIMISERS[value.lower()]}"
        if group == "data" and (os.sep in value or Path(value).is_dir()):
            return f"set {shlex.join(options_for(value))}"
        if meant := _meant(group, value, options):
            return f"set {group}={meant}"
        if group in ("experiment", "recipe"):
            return "leave it out"
        hint = "set data=imagefolder data.root=FOLDER" if group == "data" else f"set {group}={_default(options)}"
        if f"{group}._target_" in self.keys:
            hint += f", or 'allow_targets=[PACKAGE]' {group}._target_=PACKAGE.CLASS for your own"
        return hint

    def _refused_value(self, override: Override, error: Exception) -> str:
        """A key=value that could not be laid over the composed config."""
        key, line = override.key_or_group, _line(override)
        parent, _, last = key.rpartition(".")
        cause = error.__cause__ or error
        if override.is_delete():
            if key in self.keys:
                return f"{key} is needed and cannot be deleted. Hint: leave {line} out."
            return unknown(key, self.keys)
        value = override.value()
        if parent == "trainer" and last in trainer_options.REFUSED:
            return trainer_options.refusal(last, value)
        if isinstance(value, dict) and value and any(known.startswith(f"{key}.") for known in self.keys):
            wrong = getattr(cause, "full_key", None)
            one_by_one = {f"{key}.{name}": f"{key}.{name}={shown(item)}" for name, item in value.items()}
            each = " ".join(self._hint(name) if name == wrong else typed for name, typed in one_by_one.items())
            return f"{line} does not fit: {first_line(cause)} Hint: one by one, {each}."
        if declared := self.keys.get(key):
            hint = f"{key}.name={value}" if f"{key}.name" in self.keys and value is not None else self._hint(key)
            hint = hint if declared.is_group else declared.hint
            return f"{key} must be {declared.words}, got {shown(value)}. Hint: set {hint}."
        wrong = ("could not be converted", "is not a valid", "Invalid", "not Optional")
        if any(words in str(cause) for words in wrong):
            return f"{line}: {first_line(cause)} Hint: `--cfg all` shows the key as it is."
        if key.startswith("hydra."):
            return f"{key} is not a known key of Hydra. Hint: `--cfg hydra` lists them."
        if any(key.startswith(f"{free}.") for free in ("callbacks", "logger", "data.args", "model.args", "optim.args")):
            group, _, rest = key.partition(".")
            name, _, rest = rest.partition(".")
            if group not in ("callbacks", "logger") or name == "early_stopping":
                return f"{key} is not there to be changed. Hint: +{line} adds it."
            target = f"+{group}.{name}._target_=lightning.pytorch.{group.rstrip('s')}s.CLASS"
            more = f" +{line}" if rest not in ("", "_target_") else ""
            return f"{key} is not there to be changed. Hint: {target}{more} adds it."
        return unknown(key, self.keys)

    def _hint(self, key: str) -> str:
        """Return what to type for a key or a group: key=value."""
        if not self.keys[key].is_group:
            return self.keys[key].hint
        if options := self.loader.repository.get_group_options(key):
            return f"{key}={_default(options)}"
        return next(inner.hint for path, inner in self.keys.items() if path.startswith(f"{key}."))

    def _inside(self, error: Exception, name: str) -> str:
        """A mistake in a file: of the person's own --config-dir, as conf/ itself is tested."""
        text = str(error)
        where = re.search(r"In '([^']+)'", text)
        file = f" (in {where.group(1) if where else name}.yaml)"
        if unknown_key := re.search(r"Key '[^']*' (?:is )?not in .*?full_key: (\S+)", text, re.DOTALL):
            return unknown(unknown_key.group(1), self.keys, file)
        full_key = re.search(r"full_key: (\S+)", text)
        first, *others = text.splitlines() or [type(error).__name__]
        reason = re.sub(r"^In '[^']+': ", "", first)
        if reason.endswith("raised while composing config:"):
            reason = next((line for line in others if line.strip()), reason)
        return f"{full_key.group(1) + ': ' if full_key else ''}{reason.strip()}{file}. Hint: correct that file."


def _default(options: list[str]) -> str:
    """Of a group's options the one that asks for the least."""
    return next((name for name in ("none", "default", "auto", "shapes") if name in options), (options or ["NAME"])[0])


def _meant(group: str, value: str, options: list[str]) -> str | None:
    """The option of a group that another word stands for."""
    if group == "strategy" and value.lower().startswith(("fsdp", "deepspeed", "ddp_")):
        return "ddp"  # what those are for is not here: nets that do not fit one device
    if group == "data" and (name := name_of(value)):
        return name
    begun = [option for option in options if len(value) > 2 and option.startswith(value.lower())]
    near = begun if len(begun) == 1 else get_close_matches(value.lower(), options, 1, 0.75)
    return near[0] if near else None


def _line(override: Override) -> str:
    return override.input_line or ""


def _lines(overrides: list[Override]) -> list[str]:
    return [_line(override) for override in overrides]


def _is_dict(override: Override) -> bool:
    return isinstance(override._value, dict)


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".") + "."
