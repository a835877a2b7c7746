"""Explain why Hydra refuses an option, and what to type instead. Does not import torch."""

import os
import re
import shlex
import typing
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override, Quote, QuotedString, ValueType
from hydra.errors import MissingConfigException

from imagenet_ddp.cli import known_terms
from imagenet_ddp.cli.known_terms import closest, removed, unknown
from imagenet_ddp.cli.overrides import declared_with_hydra, exists, quoted
from imagenet_ddp.config.keys import declared
from imagenet_ddp.config.schema import trainer
from imagenet_ddp.config.validators import shown
from imagenet_ddp.data.sources.registry import SOURCES, TABLE_SUFFIXES, name_of, options_for
from imagenet_ddp.errors import causes
from imagenet_ddp.models.check_learning import CLASSIFIERS
from imagenet_ddp.system.files import expand_home
from imagenet_ddp.system.text import first_line

SWEPT = ("train", "submit")  # commands that accept -m
BUILT_IN_CALLBACKS = ("checkpoint", "progress", "history", "early_stopping")  # conf/callbacks


class Explainer:
    """Write messages about the options of one command. parse: reads a line by Hydra's grammar, returns None if it is
    invalid."""

    def __init__(self, verb: str, loader: ConfigLoader, parse: Callable[[str], Override | None]):
        self.verb, self.keys = verb, declared(verb)
        self.loader = loader
        self.parse = parse

    def unreadable(self, line: str) -> str:
        """Explain a line that does not follow Hydra's grammar."""
        key, equals, value = line.partition("=")
        bare = key.lstrip("+~")
        if not equals and (meant := self._of_word(line)):
            return f"{shlex.quote(line)} must be key=value. Hint: type {meant}."
        if not equals or not bare:
            close = closest(bare or value, self.keys)
            hint = f"did you mean {self._hint(close[0])}?" if close else "`--help` shows examples."
            return f"{shlex.quote(line)} must be key=value. Hint: {hint}"
        if bare in self.keys and self.keys[bare].type not in (str, Any):
            words = self.keys[bare].words
            return f"{bare} must be {words}, but cannot be read: {value}. Hint: set {self._hint(bare)}."
        value = str(expand_home(value)) if value.startswith("~") else value  # the shell does not expand ~ here
        quoted = f"put quotes around the value: `{_as_text(key, value)}`"
        hint = quoted if self.parse(shlex.split(_as_text(key, value))[0]) else "`--help` shows examples."
        return f"{shlex.quote(line)} cannot be read by Hydra's grammar. Hint: {hint}"

    def _of_word(self, word: str) -> str:
        """Return what a word without = probably means: a folder, a checkpoint, a data set or a model; "" if unknown."""
        path = expand_home(word)
        if not exists(str(path)):
            return f"data={word}" if word in SOURCES else f"model.name={word}" if word in CLASSIFIERS else ""
        if path.is_file() and path.suffix in (".ckpt", ".pt", ".pth", ".tar"):
            return shlex.quote(quoted(f"{'resume' if self.verb == 'train' else 'checkpoint'}={word}"))
        if "images" in self.keys:
            return shlex.quote(quoted(f"images={word}"))
        return shlex.join(quoted(option) for option in options_for(word))

    def sweep_without_m(self, line: str, override: Override) -> str:
        """Explain that an option has several values although -m is not set."""
        name, _, value = line.partition("=")
        key = name.lstrip("+")
        known, hints = declared_with_hydra(self.verb).get(key), []
        kind = known.type if known else None
        if known and kind is str and known.allowed is None:
            hints.append(f"type `{_as_text(name, value)}` if this is one text")
        is_list = typing.get_origin(kind) is list or key == "trainer.devices"
        if is_list and override.value_type == ValueType.SIMPLE_CHOICE_SWEEP:
            hints.append(f"type `{shlex.quote(f'{key}=[{value}]')}` to use all of them together")
        if self.verb in SWEPT and not override.is_hydra_override():
            hints.append("add -m to run one job per value")
        hint = ", or ".join(hints or [f"type one value for {override.key_or_group}"])
        problem = "-m is not set" if self.verb in SWEPT else f"{self.verb} takes one"
        return f"{line} has several values, but {problem}. Hint: {hint}."

    def refused_choice(self, override: Override, options: list[str], error: Exception) -> str:
        """Explain a choice in a group (data=...) that did not compose."""
        group, value = override.key_or_group, override.value() if not override.is_delete() else None
        if override.is_delete():
            none = f" Hint: set {group}=none." if "none" in options else f" Hint: leave {line_of(override)} out."
            return f"{group} is required and cannot be deleted.{none}"
        if isinstance(value, str) and value in options:
            if override.is_add():
                return f"{line_of(override)}: {group} is chosen already. Hint: type {group}={value} without +."
            if "Could not override" in str(error):
                return f"{line_of(override)} cannot be composed: {first_sentence(error)} Hint: leave this option out."
            return f"{line_of(override)} cannot be composed: {self.in_file(error, group + '/' + value)}"
        if isinstance(error, MissingConfigException) or not isinstance(value, str):
            hint = self._for_choice(group, str(value), options)
            return f"{group} must be one of {', '.join(options)}, got {shown(value)}. Hint: {hint}."
        return f"{line_of(override)} cannot be composed: {first_sentence(error)} Hint: leave this option out."

    def _for_choice(self, group: str, value: str, options: list[str]) -> str:
        """Return a hint for an unknown group=value: the option to type instead."""
        if instead := removed(f"{group}={value}"):
            return instead
        if group == "model" and value.lower() in CLASSIFIERS:
            return f"set model.name={value.lower()}"
        if group == "optim" and (instead := known_terms.BY_NAME["opt"].values.get(value.lower())):
            return f"set {instead}"
        if group == "data" and (os.sep in value or Path(value).is_dir() or Path(value).suffix in TABLE_SUFFIXES):
            return f"set {shlex.join(options_for(value))}"
        if meant := intended_option(group, value, options):
            return f"set {group}={meant}"
        if group in ("experiment", "recipe"):
            return "leave this option out"
        hint = "set data=imagefolder data.root=FOLDER" if group == "data" else f"set {group}={_default(options)}"
        if f"{group}._target_" in self.keys:
            hint += f", or set 'allow_targets=[PACKAGE]' {group}._target_=PACKAGE.CLASS to use your own class"
        return hint

    def refused_value(self, override: Override, error: Exception) -> str:
        """Explain a key=value that does not merge into the composed config."""
        key, line = override.key_or_group, line_of(override)
        parent, _, last = key.rpartition(".")
        cause = error.__cause__ or error
        if override.is_delete():
            if key in self.keys:
                return f"{key} is required and cannot be deleted. Hint: leave {line} out."
            return unknown(key, self.keys)
        value = override.value()
        if parent == "trainer" and last in trainer.REFUSED:
            return trainer.refusal(last, value)
        if isinstance(value, dict) and key in self.keys and self.keys[key].is_group:
            reason = first_sentence(cause)
            return f"{line} cannot be merged: {reason} Hint: leave this option out, and type each key by itself."
        if override.is_add() and "exists already" in str(error):
            return f"{line}: {key} exists already. Hint: type {line.lstrip('+')} without +."
        if declared := self.keys.get(key):
            if declared.type is str and isinstance(value, dict | list):
                typed = _as_text(key, line.partition("=")[2])
                return f"{key} must be {declared.words}, got {shown(value)}. Hint: put quotes around it: `{typed}`"
            hint = f"{key}.name={value}" if f"{key}.name" in self.keys and value is not None else self._hint(key)
            return f"{key} must be {declared.words}, got {shown(value)}. Hint: set {hint}."
        if key.startswith("hydra."):
            return f"{line}: {first_sentence(cause)} Hint: add `--cfg hydra` to list Hydra's keys."
        if removed(key):
            return unknown(key, self.keys)
        if any(key.startswith(f"{free}.") for free in ("callbacks", "logger", "data.args", "model.args", "optim.args")):
            group, _, rest = key.partition(".")
            name, _, rest = rest.partition(".")
            if group not in ("callbacks", "logger") or name in BUILT_IN_CALLBACKS:
                return f"{key} does not exist, so it cannot be changed. Hint: type +{line} to add it."
            target = f"+{group}.{name}._target_=lightning.pytorch.{group.rstrip('s')}s.CLASS"
            more = f" +{line}" if rest not in ("", "_target_") else ""
            return f"{key} does not exist, so it cannot be changed. Hint: type {target}{more} to add it."
        return unknown(key, self.keys)

    def _hint(self, key: str) -> str:
        """Return what to type for a key or a group: key=value."""
        if not self.keys[key].is_group:
            return self.keys[key].hint
        if options := self.loader.get_group_options(key):
            return f"{key}={_default(options)}"
        return next(inner.hint for path, inner in self.keys.items() if path.startswith(f"{key}."))

    def in_file(self, error: Exception, name: str) -> str:
        """Explain a mistake in a file in the user's --config-dir. The files of conf/ have none, because tests compose
        them."""
        text = next(filter(None, map(str, causes(error))), type(error).__name__)
        for cause in causes(error):
            if isinstance(cause, yaml.MarkedYAMLError) and cause.problem and cause.problem_mark:
                path, line = Path(cause.problem_mark.name), cause.problem_mark.line + 1
                return f"{path.parent.name}/{path.name}, line {line}: {cause.problem}. Hint: correct that file."
        file = f" (in {name}.yaml)"
        if unknown_key := re.search(r"Key '[^']*' (?:is )?not in .*?full_key: (\S+)", text, re.DOTALL):
            key, group = unknown_key.group(1), name.rpartition("/")[0]
            if group not in self.keys and (key == group or re.fullmatch("_.*_", key)):
                hint = "make `# @package _global_` the first line of that file"
                return f"{key} is not a known key{file}. Hint: {hint}."
            return unknown(key, self.keys, file)
        full_key = re.search(r"full_key: (\S+)", text)
        reason = next((line for line in text.splitlines() if not line.endswith("raised while composing config:")), text)
        return f"{full_key[1] + ': ' if full_key else ''}{reason.rstrip('.')}{file}. Hint: correct that file."


def _as_text(key: str, value: str) -> str:
    """Return what to type in a shell for a value whose characters Hydra must not interpret."""
    return shlex.quote(f"{key}={QuotedString(value, Quote.double).with_quotes()}")


def _default(options: list[str]) -> str:
    """Return the group's option that needs the fewest other settings."""
    return next((name for name in ("none", "default", "auto", "shapes") if name in options), (options or ["NAME"])[0])


def intended_option(group: str, value: str, options: list[str]) -> str | None:
    """Return the option of a group that the user probably meant by a word; None if no option is close."""
    if group == "strategy" and value.lower().startswith(("fsdp", "deepspeed", "ddp_")):
        return "ddp"  # strategies that shard a net over several devices are not supported
    if group == "data" and (name := name_of(value)):
        return name
    begun = [option for option in options if len(value) > 2 and option.startswith(value.lower())]
    near = begun if len(begun) == 1 else get_close_matches(value.lower(), options, 1, 0.75)
    return near[0] if near else None


def first_sentence(error: BaseException) -> str:
    """Return the first line of an error's text, ending in a full stop."""
    return first_line(error).rstrip(".") + "."


def line_of(override: Override) -> str:
    """Return an option as typed."""
    return override.input_line or ""
