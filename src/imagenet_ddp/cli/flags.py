"""Read the options of a command line that begin with -: those of Hydra, and those of other programs, each of which is a
mistake. Does not import torch.

Hydra's parser is private, so its options are listed here. tests/cli/test_known_terms.py compares the list with the
parser.
"""

import argparse
import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import hydra

from imagenet_ddp.cli.known_terms import BY_NAME, Term, closest, near_keys, plain, term_of
from imagenet_ddp.cli.known_terms import here as what_here
from imagenet_ddp.cli.spaces import path_with_spaces
from imagenet_ddp.config import conf_dir, option_of
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.config.schema.read_if import read_by
from imagenet_ddp.config.validators import FLAG
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix, Mistake, key_of, setting, without, without_effect
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


def only_prints(argv: Sequence[str]) -> bool:
    """Return whether these options make Hydra print something and exit."""
    return any(token.partition("=")[0] in _PRINTING for token in argv)


def without_local_rank(argv: Sequence[str]) -> list[str]:
    """Return argv without the --local-rank=N or --local_rank=N that torch.distributed.launch adds."""
    return [token for token in argv if not token.startswith(LOCAL_RANK)]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        hint = "run the command with `--hydra-help` to list the options that begin with -"
        raise ConfigError(Mistake(f"the command line cannot be read: {message}", hint=hint))


def read_flags(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
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


def wrong_python(argv: Sequence[str]) -> list[Mistake]:
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


def without_other_programs(verb: str, argv: Sequence[str]) -> tuple[list[str], list[Mistake]]:
    """Return (argv of a command without --local-rank and the options of other programs with their values; a mistake for
    each)."""
    rest, kept, found = list(argv), list[str](), list[Mistake]()
    while rest:
        token = rest.pop(0)
        if token.startswith(LOCAL_RANK):
            continue
        name = token.partition("=")[0]
        is_hydras = name in NAMES and not (
            f"{verb}/{name}" in BY_NAME and "".join(rest[:1]).isdigit()
        )  # -c 8 of sbatch
        if not token.startswith("-") or len(token) == 1 or is_hydras:
            kept.append(token)
            continue
        found.append(_not_an_option(verb, token, rest, argv))
        del rest[: len(found[-1].typed) - 1]
    valued = {key for each in found if _has_value(each) for key in _set_by(each)} - {"submit.extra"}  # it collects
    for number, each in enumerate(found):  # --ra-sampler --ra-reps 4
        if each.fixes and not _has_value(each) and valued.issuperset(_set_by(each)):
            found[number] = replace(each, fixes=(without(*each.typed),))
    return kept, found


def _has_value(mistake: Mistake) -> bool:
    return len(mistake.typed) > 1 or any("=" in word for word in mistake.typed)


def _set_by(mistake: Mistake) -> set[str]:
    """Return the keys that the first fix sets."""
    return {key_of(option) for fix in mistake.fixes[:1] for option in fix.options}


def _not_an_option(verb: str, token: str, rest: Sequence[str], argv: Sequence[str]) -> Mistake:
    """Return the mistake of a word with dashes and its values, which are words after it. rest: all words after it."""
    name, equals, value = token.partition("=")
    if len(name) > 3 and name[1] != "-" and term_of(name, verb) is None:
        name = f"-{name}"  # -data
    bare = plain(name) if plain(name) in declared(verb) else name.lstrip("-")
    own = "." in bare or is_own(verb, bare, value if equals else next(iter(rest), ""))
    term = None if own else term_of(name, verb)
    key = bare if own else _key_here(verb, plain(bare), term)
    takes_path = bool(key) and (own or term is not None or read_by(verb)[key].type is str)
    values = [value] if equals else _values(rest, takes_path=takes_path)
    typed = [token] if equals else [token, *values]
    if len(values) == 1:
        more = path_with_spaces(verb, [f"{key}={values[0]}", *rest[len(typed) - 1 :]], argv)[1:]
        typed, values = [*typed, *more], [" ".join([*values, *more])]
    return of_other_program(verb, typed, term, values) if term else _no_option(verb, typed, values, bare if own else "")


def _key_here(verb: str, name: str, term: Term | None) -> str:
    """Return the key that gets the value of an option of another program, or of a misspelt one; "" if none does."""
    if term is None:
        return next(iter(closest(name, read_by(verb))), "")
    return key_of(what_here(term, read_by(verb)).split()[-1]) if "{}" in term.here else ""


def is_own(verb: str, name: str, value: str) -> bool:
    """Return whether a name is a key of the command, or a group that has a file of this value."""
    key = declared(verb).get(name)
    is_key = key is not None and not key.is_group and term_of(name, verb) is None
    return is_key or (bool(re.fullmatch(r"\w+", value)) and (conf_dir() / name / f"{value}.yaml").is_file())


def _values(rest: Sequence[str], *, takes_path: bool) -> list[str]:
    """Return the leading words that are an option's values: one, and numbers that follow it. A path is a value only if
    the option takes one; else it is the data folder, which other programs accept without an option."""
    if not rest or "=" in rest[0] or re.match(r"-(?!\d)", rest[0]) or (exists(rest[0]) and not takes_path):
        return []
    return [rest[0], *itertools.takewhile(re.compile(r"-?[\d.]+(e-?\d+)?").fullmatch, rest[1:])]


def _no_option(verb: str, typed: Sequence[str], values: Sequence[str], own: str) -> Mistake:
    """Return the mistake of dashes before the name of a key, which may be misspelt. typed: the words, with the values.
    own: the name if it is the command's own."""
    what, name = f"{' '.join(typed)} is not an option", own or typed[0].lstrip("-").partition("=")[0]
    is_flag = name in declared(verb) and declared(verb)[name].type is bool
    value = ",".join(values) or ("true" if is_flag else "")
    if own and value:
        fix = setting(f"{name}={value}", aim="without dashes")
        return Mistake(what, (name,), (fix,), typed=tuple(typed))
    if not value and (option := option_of(verb, name)):  # prepare --check
        return Mistake(what, (key_of(option),), (setting(option),), typed=tuple(typed))
    near = read_by(verb).get(next(iter(closest(plain(name), read_by(verb))), ""))
    if fixes := near_keys(plain(name), read_by(verb), value or ("true" if near and near.type is bool else "VALUE")):
        return Mistake(what, fixes=fixes, typed=tuple(typed))
    if f"submit/{plain(typed[0].partition('=')[0])}" in BY_NAME:
        what += ", but one of sbatch"
        return Mistake(what, hint="`python -m imagenet_ddp.submit` makes the command of sbatch", typed=tuple(typed))
    return Mistake(what, hint="options are typed as KEY=VALUE; `--help` shows examples", typed=tuple(typed))


def of_other_program(verb: str, typed: Sequence[str], term: Term, values: Sequence[str], key: str = "") -> Mistake:
    """Return the mistake of typing an option of another program. typed: its words, with its values. key: its name if it
    is typed as KEY=VALUE."""
    option, keys = " ".join(typed), read_by(verb)
    what, at, words = (
        f"{key or option} is an option of another program",
        (key,) * bool(key),
        () if key else tuple(typed),
    )
    usual = "true" if "true" in term.values else "VALUE"
    value = values[0].replace("FREEPORT", "29500") if values else usual  # a word in the README of pytorch/examples
    here, note = what_here(term, keys, value), term.note.replace("{}", value if values else "VALUE")
    if here == "submit.extra={}":
        value, at = ("=" if option.startswith("--") else " ").join(typed), ("submit.extra",)
    if here.startswith("python "):
        return Mistake(what, at, hint=f"run `{here}` ({note})", typed=words)
    if here not in (term.here, *term.values.values()) or (here and not term.here):  # the note says why there is nothing
        note = ""
    is_sure = True
    if values and here and here == term.here and "{}" not in here and value.lower() not in term.values:
        here, is_sure = _of_flag(verb, term, value, is_key=bool(key))
        note = note if here else ""  # about what is on
    options = [word.replace("{}", ",".join(values or [value]) if "[{}]" in word else value) for word in here.split()]
    if unread := [each for each in map(key_of, options) if each in declared("train") and each not in keys]:
        what += f", and {verb} has no use for {unread[-1]}"
        return Mistake(what, at, fixes=(without_effect(key or option),), typed=words)
    left = (key,) if key else () if options else (option,)
    return Mistake(what, at, (Fix(tuple(options), left, f"({note})" if note else "", is_meant=is_sure),), typed=words)


def _of_flag(verb: str, term: Term, value: str, *, is_key: bool) -> tuple[str, bool]:
    """Return (what to type for an option of another program that needs no value but has one, whether that says the
    same). A flag that is off is typed, too: a recipe may have it on."""
    option, _, on = term.here.split()[-1].partition("=")
    known, meant = declared(verb).get(key_of(option)), FLAG.nearest(value)
    if meant == "false":
        is_flag = known is not None and known.type is bool
        return term.values.get(meant) or (f"{option}={'false' if on == 'true' else 'true'}" if is_flag else ""), True
    if meant == "true" or not is_key:
        return term.here, True
    group = conf_dir() / option
    can_be = not group.is_dir() or (group / f"{value}.yaml").is_file()
    return (f"{option}={{}}", True) if can_be else (term.here, False)  # amp=bf16-mixed; early_stopping=5
