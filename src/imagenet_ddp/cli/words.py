"""Split a command line into Hydra's own options, which begin with -, and the words KEY=VALUE, and find what was not
meant as it was typed: options of other programs, invisible characters, empty values, a comma as the decimal point, and
keys of Hydra that have no effect. Does not import torch.

Hydra's parser is private, so its options are listed here. tests/cli/test_known_terms.py compares the list with the
parser.
"""

import argparse
import itertools
import re
import shlex
import sys
import unicodedata
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import hydra
import yaml

from imagenet_ddp.cli.known_terms import Term, term_of
from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema.keys import Key, declared
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix, Mistake, key_of, setting, without
from imagenet_ddp.system.files import exists

_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
# Names -> keyword arguments of argparse's add_argument; {}: action="store_true".
_OPTIONS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--help", "-h"): {},
    ("--hydra-help",): {},
    ("--version",): {},
    ("--shell-completion", "-sc"): {},
    ("--resolve",): {},
    ("--run", "-r"): {},
    ("--multirun", "-m"): {},
    ("--cfg", "-c"): {"choices": ("job", "hydra", "all")},
    ("--info", "-i"): {"choices": _INFO, "nargs": "?", "const": "all"},
    ("--config-name", "-cn"): {"metavar": "NAME"},
    ("--config-dir", "-cd"): {"metavar": "FOLDER"},
}
NAMES = {name for names in _OPTIONS for name in names}
# With these options Hydra only prints something. Those of ANSWERED take precedence over all other options.
ANSWERED = {"--help", "-h", "--hydra-help", "--version", "--shell-completion", "-sc"}
_PRINTING = {*ANSWERED, "--cfg", "-c", "--info", "-i"}
_OF_HYDRA = {"--multirun", "-m", "--hydra-help", "--shell-completion", "-sc", "--info", "-i"}  # read by its own parser
LOCAL_RANK = ("--local-rank=", "--local_rank=")  # torch.distributed.launch adds it, with N

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
    own, found = _without_other_programs(argv)
    flags, own = _flags(own)
    if not ANSWERED.isdisjoint(own):
        return Words(own, flags.overrides, flags, is_answered=True, mistakes=_of_python(own))
    groups = set(map(key_of, flags.overrides))
    own, typed = ([_as_choice(word, groups) for word in words] for words in (own, flags.overrides))
    typed, spaced = _without_spaces(typed)
    kept, odd = _as_meant(typed, declared(verb), sweeps=flags.multirun)
    odd = spaced + odd
    of_kept = set(map(key_of, kept))
    return Words(
        own, kept, flags, False, found + _of_python(own) + odd, {key for each in odd for key in each.keys} - of_kept
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
    """Return whether conf/ has a file for this name of a group. Files of another name may be chosen, but not so: with
    model=timm, model.name is a net."""
    path = conf_dir() / group / f"{name}.yaml"
    if not re.fullmatch(r"\w+", name) or not path.is_file():
        return False
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    groups = [content, *content.values()]  # the file of a logger has one for it
    return any(isinstance(each, dict) and each.get("name") == name for each in groups)


def only_prints(argv: Sequence[str]) -> bool:
    """Return whether these options make Hydra print something and exit."""
    return any(token.partition("=")[0] in _PRINTING for token in argv)


def without_local_rank(argv: Sequence[str]) -> list[str]:
    """Return argv without the --local-rank=N or --local_rank=N that torch.distributed.launch adds."""
    return [token for token in argv if not token.startswith(LOCAL_RANK)]


# ---- options that begin with -


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        hint = "run the command with `--hydra-help` to list the options that begin with -"
        raise ConfigError(Mistake(f"the command line cannot be read: {message}", hint=hint))


def _flags(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return (Hydra's options, argv for Hydra). key=value may come before or after an option. Raises ConfigError."""
    parser = _Parser(add_help=False)
    parser.add_argument("overrides", nargs="*")
    only_one = parser.add_mutually_exclusive_group()
    for names, how in _OPTIONS.items():
        group = only_one if names[0] in ("--run", "--multirun", "--cfg", "--info") else parser
        group.add_argument(*names, **how or {"action": "store_true"})
    args, rest = parser.parse_known_args(argv)
    if late := [token for token in rest if not token.startswith("-")]:
        # if words come both before and after an option, argparse leaves over those after it; Hydra would refuse them
        args.overrides = [*args.overrides, *late]
        words = list(args.overrides)
        flags = [token for token in argv if not (token in words and not words.remove(token))]
        argv = [*args.overrides, *flags]
    if args.config_dir is not None and not Path(args.config_dir).is_dir():
        parser.error(f"--config-dir must be a folder, got {Path(args.config_dir).absolute()}")
    return args, argv


def _of_python(argv: Sequence[str]) -> list[Mistake]:
    """Return a mistake if an option is left to Hydra's own parser, which is broken on this Python: argparse of 3.14
    refuses a help text that Hydra 1.3.8 makes when it is shown."""
    typed = [word for word in argv if word.partition("=")[0] in _OF_HYDRA or word.upper() == "HYDRA.MODE=MULTIRUN"]
    if not typed or sys.version_info < (3, 14) or hydra.__version__ != "1.3.8":
        return []
    python = ".".join(map(str, sys.version_info[:2]))
    what = (
        f"{typed[0]} requires Python 3.13 or older, because Hydra {hydra.__version__} fails on later ones, got {python}"
    )
    return [Mistake(what, hint="begin the command with `uv run --python 3.13`")]


def _without_other_programs(argv: Sequence[str]) -> tuple[list[str], list[Mistake]]:
    """Return (argv without --local-rank and the options of other programs with their values; a mistake for each)."""
    rest, kept, found = list(argv), list[str](), list[Mistake]()
    while rest:
        token = rest.pop(0)
        name, equals, value = token.partition("=")
        if token.startswith(LOCAL_RANK):
            continue
        if not token.startswith("-") or len(token) == 1 or name in NAMES:
            kept.append(token)
            continue
        term = term_of(name)
        values = [value] if equals else _values(term, rest)
        del rest[: 0 if equals else len(values)]
        found.append(_of_other_program([token] if equals else [token, *values], term, values))
    return kept, found


def _values(term: Term | None, rest: Sequence[str]) -> list[str]:
    """Return the leading words that are an option's values: one, and numbers that follow it. A path is a value only if
    the option takes one; else it is the data folder, which other programs accept without an option."""
    if not rest or "=" in rest[0] or re.match(r"-(?!\d)", rest[0]):
        return []
    if Path(rest[0]).exists() and (term is None or "{}" not in term.here):
        return []
    return [rest[0], *itertools.takewhile(re.compile(r"-?[\d.]+(e-?\d+)?").fullmatch, rest[1:])]


def _of_other_program(typed: Sequence[str], term: Term | None, values: Sequence[str]) -> Mistake:
    """Return the mistake of typing an option of another program. typed: its words, with its values."""
    option = " ".join(typed)
    if term is None:
        hint = "options are typed as KEY=VALUE; `--help` shows examples"
        return Mistake(f"{option} is not an option", hint=hint, typed=tuple(typed))
    value = values[0].replace("FREEPORT", "29500") if values else "VALUE"  # a word in the README of pytorch/examples
    here, note = term.values.get(value.lower(), term.here), term.note.replace("{}", value)
    if here.startswith("python "):
        return Mistake(f"{option} is an option of another program", hint=f"run `{here}` ({note})", typed=tuple(typed))
    options = here.replace("{}", ",".join(values or [value]) if "[{}]" in here else value).split()
    fix = Fix(tuple(options), () if options else (option,), f"({note})" if note else "")
    return Mistake(f"{option} is an option of another program", fixes=(fix,), typed=tuple(typed))


# ---- words KEY=VALUE


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
            found.append(Mistake(f"{word} has no effect", (key,), (without(word),)))
        elif declared is not None and declared.type is float and not sweeps and re.fullmatch(r"-?\d+,\d+", value):
            found.append(
                Mistake(
                    f"{word} has a comma", (key,), (setting(visible.replace(",", "."), aim="with a decimal point"),)
                )
            )
        else:
            kept.append(visible)
    return kept, found


def _without_spaces(words: Sequence[str]) -> tuple[list[str], list[Mistake]]:
    """Return (the words with those joined that have spaces around =, or in the path of an existing file, a mistake for
    each)."""
    kept, found, rest = list[str](), list[Mistake](), list(words)
    while rest:
        word, *after = rest
        sign, value = (*after, "", "")[:2]
        if word.endswith("=") and "=" not in word[:-1] + sign and sign:  # KEY= VALUE
            typed = [word, sign]
        elif "=" not in word and sign == "=" and value and "=" not in value:  # KEY = VALUE
            typed = [word, sign, value]
        elif "=" not in word and len(sign) > 1 and sign[0] == "=" and "=" not in sign[1:]:  # KEY =VALUE
            typed = [word, sign]
        elif typed := _path_with_spaces(rest):
            kept.append(" ".join(typed))
            fix = Fix((kept[-1],), said=f"type {shlex.quote(kept[-1])}")
            what = f"{kept[-1]} has a space, and must be in quotes"
            found.append(Mistake(what, (key_of(word),), (fix,), typed=tuple(typed)))
            del rest[: len(typed)]
            continue
        else:
            kept.append(rest.pop(0))
            continue
        del rest[: len(typed)]
        kept.append("".join(typed))
        what = f"{' '.join(typed)} must have no spaces around ="
        found.append(Mistake(what, (key_of(kept[-1]),), (setting(kept[-1]),), typed=tuple(typed)))
    return kept, found


def _path_with_spaces(words: Sequence[str]) -> list[str]:
    """Return the leading words PATH or KEY=PATH, WORD, ... that together name a file or folder; [] if there is none."""
    value = words[0].rpartition("=")[2]
    more = [*itertools.takewhile(lambda word: "=" not in word, words[1:])]
    lengths = range(len(more), 0, -1)
    return next(([*words[: 1 + count]] for count in lengths if exists(" ".join([value, *more[:count]]))), [])


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
