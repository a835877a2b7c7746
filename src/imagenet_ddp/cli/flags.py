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
from pathlib import Path
from typing import Any, NoReturn

import hydra

from imagenet_ddp.cli.known_terms import Term, term_of
from imagenet_ddp.cli.known_terms import here as what_here
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.config.schema.read_if import read_by
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix, Mistake, key_of, setting, without

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
        name, equals, value = token.partition("=")
        if token.startswith(LOCAL_RANK):
            continue
        if not token.startswith("-") or len(token) == 1 or name in NAMES:
            kept.append(token)
            continue
        term = term_of(name)
        of_key = not term and "." in name and rest and "=" not in rest[0] and rest[0][0] != "-"
        values = [value] if equals else rest[:1] if of_key else _values(term, rest)
        del rest[: 0 if equals else len(values)]
        found.append(_of_other_program(verb, [token] if equals else [token, *values], term, values))
    return kept, found


def _values(term: Term | None, rest: Sequence[str]) -> list[str]:
    """Return the leading words that are an option's values: one, and numbers that follow it. A path is a value only if
    the option takes one; else it is the data folder, which other programs accept without an option."""
    if not rest or "=" in rest[0] or re.match(r"-(?!\d)", rest[0]):
        return []
    if Path(rest[0]).exists() and (term is None or "{}" not in term.here):
        return []
    return [rest[0], *itertools.takewhile(re.compile(r"-?[\d.]+(e-?\d+)?").fullmatch, rest[1:])]


def _of_other_program(verb: str, typed: Sequence[str], term: Term | None, values: Sequence[str]) -> Mistake:
    """Return the mistake of typing an option of another program. typed: its words, with its values."""
    option = " ".join(typed)
    name, equals, _ = typed[0].lstrip("-").partition("=")
    if term is None and "." in name and (equals or values):  # a key of this program
        fix = setting(f"{name}={','.join(values)}", aim="without dashes")
        return Mistake(f"{option} is not an option", (name,), (fix,), typed=tuple(typed))
    if term is None:
        hint = "options are typed as KEY=VALUE; `--help` shows examples"
        return Mistake(f"{option} is not an option", hint=hint, typed=tuple(typed))
    value = values[0].replace("FREEPORT", "29500") if values else "VALUE"  # a word in the README of pytorch/examples
    keys = read_by(verb)
    here, note = what_here(term, keys, value), term.note.replace("{}", value)
    if here.startswith("python "):
        return Mistake(f"{option} is an option of another program", hint=f"run `{here}` ({note})", typed=tuple(typed))
    if here not in (term.here, *term.values.values()):
        note = ""
    options = here.replace("{}", ",".join(values or [value]) if "[{}]" in here else value).split()
    if unread := [key for key in map(key_of, options) if key in declared("train") and key not in keys]:
        what = f"{option} is an option of another program, and {verb} has no use for {unread[-1]}"
        return Mistake(what, fixes=(without(option),), typed=tuple(typed))
    fix = Fix(tuple(options), () if options else (option,), f"({note})" if note else "")
    return Mistake(f"{option} is an option of another program", fixes=(fix,), typed=tuple(typed))
