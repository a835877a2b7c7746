"""Read the options of a command line by Hydra's grammar, and explain what it cannot be read.

Hydra reads a value before it knows the type of its key: 2024_11_26 as the integer 20241126, 1.10 as 1.1, and in,out as
two values. Here the key is known. What is quoted stays quoted where Hydra composes again, in a sweep or on another
machine. Does not import torch.
"""

import functools
import re
import shlex
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString, ValueType
from hydra.errors import HydraException

from imagenet_ddp.cli.overrides import quoted
from imagenet_ddp.config import keys
from imagenet_ddp.config.keys import Key, declared
from imagenet_ddp.data.sources.registry import options_for
from imagenet_ddp.mistakes import Fix, Mistake, setting
from imagenet_ddp.system.files import exists, expand_home

SWEPT = ("train", "submit")  # commands that accept -m

# text in quotes, or neither a list, nor a call, nor an interpolation
_WORD = re.compile(r"""'[^']*'|"[^"]*"|[^][(){}'"~][^][(){}'"]*""")


def quote_text(option: str, verb: str, parse: Callable[[str], Override | None], *, sweeps: bool) -> str:
    """Return the option with quotes around its value if that is text which Hydra would read as something else.

    A value that is the path of an existing file or folder is that path, whatever its characters mean to Hydra. Without
    such a path, commas, brackets and quotes mean what they mean to Hydra. null stays null where the key accepts it.
    parse: reads an option by Hydra's grammar, returns None if it is invalid. sweeps: whether an option may have several
    values; otherwise, such an option is returned as typed, for the message that refuses it.
    """
    name, equals, value = option.partition("=")
    path = name.lstrip("+")
    key = declared_with_hydra(verb).get(path)
    is_text = key is not None and key.type is str
    may_be_path = key is not None and is_text and key.allowed is None
    if may_be_path and value.startswith("~"):  # the shell does not expand ~ here
        value = str(expand_home(value))
        option = f"{name}={value}"
    is_group = "." not in path and not path.startswith("~") and (key is None or key.is_group)
    if not equals or "${" in value or not (is_group or is_text):
        return option
    is_path = may_be_path and value != "null" and exists(value)
    words = [value] if is_path or "," not in value else [word.strip() for word in value.split(",")]  # of a sweep
    if not is_path and not (all(map(_WORD.fullmatch, words)) and (len(words) == 1 or (sweeps and parse(option)))):
        return option
    is_nullable = is_group or (key is not None and key.nullable)

    def as_text(word: str) -> str:
        if not is_path and (word[0] in "'\"" or (is_nullable and word.lower() == "null")):
            return word
        parsed = parse(f"{name}={word}")
        as_it_is = parsed is not None and parsed.value_type == ValueType.ELEMENT and parsed.value() == word
        return word if as_it_is or (is_group and parsed is None) else QuotedString(word, Quote.single).with_quotes()

    return f"{name}={','.join(map(as_text, words))}"


@functools.cache
def declared_with_hydra(verb: str) -> Mapping[str, Key]:
    """Return the command's keys and Hydra's own."""
    return {**keys.declared(verb), **keys.of_class(HydraConf, "hydra.")}


class OptionReader:
    """Read the options of one command."""

    def __init__(self, verb: str, config_name: str, loader: ConfigLoader):
        self.verb, self.config_name, self.loader, self.keys = verb, config_name, loader, declared(verb)
        self.parser = OverridesParser.create(config_loader=loader)

    def quoted(self, words: Sequence[str], *, sweeps: bool) -> list[str]:
        """Return the words of a command line, with quotes around text that Hydra would read as something else."""
        return [quote_text(word, self.verb, self._parsed, sweeps=sweeps) for word in words]

    def read(self, lines: Sequence[str], *, sweeps: bool) -> tuple[list[Override], list[Mistake]]:
        """Return (options, mistakes)."""
        overrides, found, unreadable = list[Override](), list[Mistake](), list[str]()
        for line in lines:
            override = self._parsed(line)
            if override is None or not override.key_or_group:
                unreadable.append(line)
            elif override.is_sweep_override() and not sweeps:
                found.append(self._sweep_without_m(line, override))
            elif override.is_sweep_override() and override.is_hydra_override():
                key = override.key_or_group
                found.append(
                    Mistake(f"{line}: Hydra's own keys cannot be swept", (key,), hint=f"type one value for {key}")
                )
            else:
                overrides.append(override)
        # only the first: the others are often parts of the same quoted value
        return overrides, [*map(self._unreadable, unreadable[:1]), *found]

    def _parsed(self, line: str) -> Override | None:
        try:
            return self.parser.parse_overrides([line])[0]
        except HydraException:
            return None

    def _options(self, override: Override) -> list[str]:
        """Return the options of a group in conf/ or in a folder of the search path, [] if the key is not a group."""
        return self.loader.get_group_options(override.key_or_group, config_name=self.config_name)

    def _is_choice(self, override: Override) -> bool:
        """Return whether an option chooses a file. The values are applied to what the files contain."""
        return "@" in line_of(override) or bool(self._options(override) and not isinstance(override.value(), dict))

    def _unreadable(self, line: str) -> Mistake:
        """Explain a line that does not follow Hydra's grammar."""
        key, equals, value = line.partition("=")
        bare = key.lstrip("+~")
        if not equals or not bare:
            what, fix = f"{shlex.quote(line)} must be key=value", self._for_word(line)
            return Mistake(what, fixes=fix, hint="" if fix else "`--help` shows examples", typed=(line,))
        if bare in self.keys and self.keys[bare].type not in (str, Any):
            words = self.keys[bare].words
            return Mistake(f"{bare} must be {words}, but cannot be read: {value}", (bare,), (self._fix(bare),))
        typed = as_text(key, value)
        fixes = (
            (Fix((typed,), said=f"put quotes around the value: `{shlex.quote(typed)}`"),) if self._parsed(typed) else ()
        )
        what = f"{shlex.quote(line)} cannot be read by Hydra's grammar"
        return Mistake(what, (bare,), fixes, "" if fixes else "see `--help`", typed=(line,))

    def _for_word(self, word: str) -> tuple[Fix, ...]:
        """Return what to type for a word without =, which may be a checkpoint, a file or a folder; () if there is none
        of that name."""
        if not exists(word):
            return ()
        if Path(word).is_file() and Path(word).suffix in (".ckpt", ".pt", ".pth", ".tar"):
            options = [f"{'resume' if self.verb == 'train' else 'checkpoint'}={word}"]
        else:
            options = [f"images={word}"] if "images" in self.keys else options_for(word)
        return (setting(*map(quoted, options)),)

    def _sweep_without_m(self, line: str, override: Override) -> Mistake:
        """Explain that an option has several values although -m is not set."""
        name, _, value = line.partition("=")
        key = name.lstrip("+")
        known, fixes = declared_with_hydra(self.verb).get(key), list[Fix]()
        kind = known.type if known else None
        if known and kind is str and known.allowed is None:
            fixes.append(setting(as_text(name, value), aim="if this is one text"))
        is_list = typing.get_origin(kind) is list or key == "trainer.devices"
        if is_list and override.value_type == ValueType.SIMPLE_CHOICE_SWEEP:
            fixes.append(setting(f"{key}=[{value}]", aim="to use all of them together"))
        if self.verb in SWEPT and not override.is_hydra_override() and typing.get_origin(kind) is not list:
            fixes.append(Fix(("-m",), said="add -m to run one job per value"))
        hint = "" if fixes else f"type one value for {override.key_or_group}"
        return Mistake(f"{line} has several values, but -m is not set", (key,), tuple(fixes), hint)

    def _fix(self, key: str) -> Fix:
        """Return what to type for a key or a group."""
        if not self.keys[key].is_group:
            return self.keys[key].fix
        if options := self.loader.get_group_options(key):
            return setting(f"{key}={simplest(options)}")
        inner = next(inner.fix for path, inner in self.keys.items() if path.startswith(f"{key}."))
        return replace(inner, without=(key,), said=inner.words)


def simplest(options: list[str]) -> str:
    """Return the group's option that needs the fewest other settings."""
    return next((name for name in ("none", "default", "auto", "shapes") if name in options), (options or ["NAME"])[0])


def as_text(key: str, value: str) -> str:
    """Return the option for a value whose characters Hydra must not interpret."""
    return f"{key}={QuotedString(value, Quote.double).with_quotes()}"


def line_of(override: Override) -> str:
    """Return an option as typed."""
    return override.input_line or ""
