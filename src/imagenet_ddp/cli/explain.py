"""Explain why Hydra refuses an option, and what to type instead. Does not import torch."""

import os
import shlex
import typing
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override, Quote, QuotedString, ValueType

from imagenet_ddp.cli.known_terms import removed, unknown
from imagenet_ddp.cli.overrides import declared_with_hydra, exists, quoted
from imagenet_ddp.config.keys import declared
from imagenet_ddp.config.schema import trainer
from imagenet_ddp.config.validators import shown
from imagenet_ddp.data.sources.registry import TABLE_SUFFIXES, options_for
from imagenet_ddp.errors import causes
from imagenet_ddp.models.check_learning import CLASSIFIERS
from imagenet_ddp.system.text import first_line

SWEPT = ("train", "submit")  # commands that accept -m
FREE = ("callbacks.", "logger.", "data.args.", "model.args.", "optim.args.")  # any key below these can be added


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
        if not equals or not bare:
            return f"{shlex.quote(line)} must be key=value. Hint: {self._for_word(line)}."
        if bare in self.keys and self.keys[bare].type not in (str, Any):
            words = self.keys[bare].words
            return f"{bare} must be {words}, but cannot be read: {value}. Hint: set {self._hint(bare)}."
        typed = _as_text(key, value)
        hint = f"put quotes around the value: `{typed}`" if self.parse(shlex.split(typed)[0]) else "see `--help`"
        return f"{shlex.quote(line)} cannot be read by Hydra's grammar. Hint: {hint}."

    def _for_word(self, word: str) -> str:
        """Return a hint for a word without =, which may be a checkpoint, a file or a folder."""
        if not exists(word):
            return "`--help` shows examples"
        if Path(word).is_file() and Path(word).suffix in (".ckpt", ".pt", ".pth", ".tar"):
            options = [f"{'resume' if self.verb == 'train' else 'checkpoint'}={word}"]
        else:
            options = [f"images={word}"] if "images" in self.keys else options_for(word)
        return f"type {shlex.join(map(quoted, options))}"

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
        return f"{line} has several values, but -m is not set. Hint: {hint}."

    def refused_choice(self, override: Override, options: list[str], error: Exception) -> str:
        """Explain a choice in a group (data=...) that did not compose."""
        group, value = override.key_or_group, override.value() if not override.is_delete() else None
        if value in options and not override.is_add():
            return f"{line_of(override)} cannot be composed: {in_file(error, f'{group}/{value}', group in self.keys)}"
        hint = self._for_choice(group, str(value), options)
        return f"{group} must be one of {', '.join(options)}, got {shown(value)}. Hint: {hint}."

    def _for_choice(self, group: str, value: str, options: list[str]) -> str:
        """Return a hint for an unknown group=value: the option to type instead."""
        if instead := removed(f"{group}={value}"):
            return instead
        if group == "model" and value.lower() in CLASSIFIERS:
            return f"set model.name={value.lower()}"
        if group == "data" and (os.sep in value or Path(value).is_dir() or Path(value).suffix in TABLE_SUFFIXES):
            return f"set {shlex.join(options_for(value))}"
        if near := get_close_matches(value.lower(), options, 1):
            return f"set {group}={near[0]}"
        return "leave this option out" if group in ("experiment", "recipe") else f"set {group}={_default(options)}"

    def refused_value(self, override: Override, error: Exception) -> str:
        """Explain a key=value that does not merge into the composed config."""
        key, line, declaration = override.key_or_group, line_of(override), self.keys.get(override.key_or_group)
        parent, _, last = key.rpartition(".")
        if override.is_delete():
            required = f"{key} is required and cannot be deleted. Hint: leave {line} out."
            return required if declaration else unknown(key, self.keys)
        value = override.value()
        if parent == "trainer" and last in trainer.REFUSED:
            return trainer.refusal(last, value)
        if declaration and override.is_add():
            return f"{line}: {key} exists already. Hint: type {line.lstrip('+')} without +."
        if declaration and declaration.type is str and isinstance(value, dict | list):
            typed = _as_text(key, line.partition("=")[2])
            return f"{key} must be {declaration.words}, got {shown(value)}. Hint: put quotes around it: `{typed}`"
        if declaration and not isinstance(value, dict):
            hint = f"{key}.name={value}" if f"{key}.name" in self.keys and value is not None else self._hint(key)
            return f"{key} must be {declaration.words}, got {shown(value)}. Hint: set {hint}."
        if declaration or key.startswith("hydra."):
            reason = first_sentence(error.__cause__ or error)
            return f"{line} cannot be merged: {reason} Hint: leave it out, and type each key by itself."
        if key.startswith(FREE) and not removed(key):
            return f"{key} does not exist, so it cannot be changed. Hint: type +{line} to add it."
        return unknown(key, self.keys)

    def _hint(self, key: str) -> str:
        """Return what to type for a key or a group: key=value."""
        if not self.keys[key].is_group:
            return self.keys[key].hint
        if options := self.loader.get_group_options(key):
            return f"{key}={_default(options)}"
        return next(inner.hint for path, inner in self.keys.items() if path.startswith(f"{key}."))


def in_file(error: Exception, name: str, is_typed_group: bool) -> str:
    """Explain a mistake in a file in the user's --config-dir. The files of conf/ have none, because tests compose
    them."""
    text = next(filter(None, map(str, causes(error))), type(error).__name__)
    first = "" if is_typed_group else ", whose first line must be `# @package _global_`"
    return f"{' '.join(text.split()).rstrip('.')}. Hint: correct {name}.yaml{first}."


def _as_text(key: str, value: str) -> str:
    """Return what to type in a shell for a value whose characters Hydra must not interpret."""
    return shlex.quote(f"{key}={QuotedString(value, Quote.double).with_quotes()}")


def _default(options: list[str]) -> str:
    """Return the group's option that needs the fewest other settings."""
    return next((name for name in ("none", "default", "auto", "shapes") if name in options), (options or ["NAME"])[0])


def first_sentence(error: BaseException) -> str:
    """Return the first line of an error's text, ending in a full stop."""
    return first_line(error).rstrip(".") + "."


def line_of(override: Override) -> str:
    """Return an option as typed."""
    return override.input_line or ""
