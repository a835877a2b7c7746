"""Split a command line into options that begin with - (flags.py) and words KEY=VALUE, and find what was not meant as it
was typed: invisible characters, empty values, a comma as the decimal point, and keys of Hydra that have no effect. Does
not import torch."""

import argparse
import re
import typing
import unicodedata
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import yaml

from imagenet_ddp.cli import spaces
from imagenet_ddp.cli.flags import ANSWERED, read_flags, without_other_programs, wrong_python
from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema.keys import Key, declared
from imagenet_ddp.mistakes import Fix, Mistake, key_of, meant, without_effect
from imagenet_ddp.system.files import exists

# Keys of Hydra that have no effect, because a run does not use Hydra's own start of a job.
UNREAD = ("hydra.job.chdir", "hydra.job.env_set", "hydra.callbacks", "hydra.output_subdir")
JOINERS = "\u200c\u200d"  # part of the spelling in Persian, and of emoji


@dataclass(frozen=True)
class Words:
    """The words of a command line.

    argv: as typed, without --local-rank and the options of other programs. typed: its words KEY=VALUE. flags: Hydra's
    own options. is_answered: something is printed, such as --help, whatever else is typed. mistakes: in the words.
    left_out: the keys of words that are mistakes and not in typed.
    """

    argv: list[str]
    typed: list[str]
    flags: argparse.Namespace
    is_answered: bool = False
    mistakes: list[Mistake] = field(default_factory=list[Mistake])
    left_out: set[str] = field(default_factory=set[str])

    @property
    def only_prints(self) -> bool:
        """Whether the command prints something of its options, and starts nothing."""
        return bool(self.is_answered or self.flags.cfg or self.flags.info)


def read(verb: str, argv: Sequence[str]) -> Words:
    """Split the command line of a command. Raises ConfigError if it cannot be split."""
    own, found = without_other_programs(verb, argv)
    flags, own = read_flags(own)
    if not ANSWERED.isdisjoint(own):
        return Words(own, flags.overrides, flags, is_answered=True, mistakes=wrong_python(own))
    groups = set(map(key_of, flags.overrides))
    own, typed = ([_as_choice(word, groups) for word in words] for words in (own, flags.overrides))
    typed, spaced = spaces.without_spaces(verb, typed)
    kept, odd = _as_meant(typed, declared(verb), sweeps=flags.multirun)
    odd = spaced + odd
    of_kept = set(map(key_of, kept))
    return Words(
        own, kept, flags, False, found + wrong_python(own) + odd, {key for each in odd for key in each.keys} - of_kept
    )


def _as_choice(word: str, typed: Set[str]) -> str:
    """Return the word that chooses the file which is meant. optim.name=adamw means optim=adamw, with its values: alone,
    the name would keep those of another optimizer. typed: the keys of all words."""
    if word.startswith("+experiment="):  # in other projects it is added; here it has a default, so Hydra would refuse
        return word.removeprefix("+")
    key, _, value = word.partition("=")
    group, _, last = key.rpartition(".")
    is_name = last == "name" and group.isidentifier() and group not in typed
    return f"{group}={value}" if is_name and all(_is_of_file(group, name) for name in value.split(",")) else word


def _is_of_file(group: str, name: str) -> bool:
    """Return whether conf/ has a file for this name of a group, with values beside the name. Files of another name may
    be chosen, but not so: with model=timm, model.name is a net."""
    path = conf_dir() / group / f"{name}.yaml"
    if not re.fullmatch(r"\w+", name) or not path.is_file():
        return False
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    groups = [content, *content.values()]  # the file of a logger has one for it
    return any(isinstance(each, dict) and each.get("name") == name and len(each) > 1 for each in groups)


def _as_meant(words: Sequence[str], keys: Mapping[str, Key], *, sweeps: bool) -> tuple[list[str], list[Mistake]]:
    """Return (the words as they were probably meant, without empty options; mistakes). keys: those that are declared.
    sweeps: a comma separates the values of a sweep."""
    kept: list[str] = []
    found: list[Mistake] = []
    for word in words:
        visible = "".join(char for char in word if not _is_invisible(char))
        name, equals, value = visible.partition("=")
        key = key_of(visible)
        declared = keys.get(key)
        if visible != word and not exists(word.partition("=")[2]):
            found.append(_invisible(word, visible, key))
        else:
            visible = word
        is_free_text = declared is not None and declared.type is str and declared.allowed is None
        if equals and (not value.strip() or (is_free_text and value in ("''", '""'))):
            hint = f"if it is a shell variable, set that first; else {_instead_of_nothing(name, declared)}"
            found.append(Mistake(f"{key or word} is empty", (key,), hint=hint))
        elif key.startswith(UNREAD):
            found.append(Mistake(f"{word} has no effect", (key,), (without_effect(word),)))
        elif value.endswith(",") and value.strip(",") and not exists(value):
            found.append(Mistake(f"`{word}` ends with a comma", (key,), (meant(visible.rstrip(",")),)))
        elif sweeps and declared is not None and re.fullmatch(r"\[[^][]+\]", value) and _is_single(declared.type):
            what = f"{word} is one list, and -m takes the values of a sweep without brackets"
            found.append(Mistake(what, (key,), (meant(f"{name}={value[1:-1]}"),)))
        elif declared is not None and declared.type is float and not sweeps and re.fullmatch(r"-?\d+,\d+", value):
            fix = meant(visible.replace(",", "."), aim="with a decimal point")
            found.append(Mistake(f"{word} has a comma", (key,), (fix,)))
        else:
            kept.append(visible)
    return kept, found


def _is_single(kind: Any) -> bool:
    """Return whether the values of a declared type are never lists."""
    return kind is not Any and typing.get_origin(kind) is not list


def _instead_of_nothing(name: str, key: Key | None) -> str:
    """Return what to type for an option without a value. name: with its sign."""
    if key is None or key.is_group:
        return "leave it out"
    if key.nullable and key.fix.is_complete:
        return f"type {name}=null for none"
    return f"type {name}={key.example.partition(' ')[0]}"


def _is_invisible(char: str) -> bool:
    kind = unicodedata.category(char)
    return char not in f" \t\n{JOINERS}" and kind in ("Cc", "Cf", "Zs", "Zl", "Zp")


def _invisible(word: str, visible: str, key: str) -> Mistake:
    char = next(filter(_is_invisible, word))
    name = unicodedata.name(char, "control character").lower()
    if char == "\r":
        name = "carriage return"
    code = f"U+{ord(char):04X}"
    shown = "".join(f"<U+{ord(each):04X}>" if _is_invisible(each) else each for each in word)
    fix = Fix((visible,), () if "=" in visible else (word,))
    hint = "if a script contains it, run `sed -i 's/\\r$//' SCRIPT`: it was saved on Windows" if char == "\r" else ""
    return Mistake(f"{shown} contains an invisible character, {name} ({code})", (key,), (fix,), hint, (word,))
