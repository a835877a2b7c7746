"""Map the options of other programs to the keys of this one. The table is known_terms.txt, from which hints and
docs/coming-from.md are made. Does not import torch."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagenet_ddp.cli import hydra_flags
from imagenet_ddp.distributed.network import nccl


@dataclass(frozen=True, eq=False)
class Term:
    """One line of known_terms.txt, whose first lines explain the format. flag: the option accepts no value. several: it
    accepts more than one value (nargs="+"). values: value in the other program -> options to type here."""

    names: tuple[str, ...]
    here: str
    note: str
    flag: bool
    several: bool
    values: Mapping[str, str]


def _read() -> list[Term]:
    terms: list[Term] = []
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("    "):
            there, _, here = line.partition(" :")
            terms[-1].values.update(dict.fromkeys(there.split(), here.strip()))  # type: ignore[attr-defined]
        elif not line.startswith("#"):
            names, here, note = ([cell.strip() for cell in line.split("|")] + [""])[:3]
            flag, several = names.startswith("!"), names.startswith("*")
            terms.append(Term(tuple(names.lstrip("!* ").split()), here, note, flag, several, {}))
    return terms


def plain(name: str) -> str:
    """Return a name without leading dashes and with underscores: dist_url for --dist-url. A short option such as -b
    keeps its dash, because -b and a key named b differ."""
    bare = name.lstrip("-")
    return name if name.startswith("-") and not name.startswith("--") else bare.replace("-", "_")


TERMS = _read()
BY_NAME = {plain(name): term for term in TERMS for name in term.names}
# Likely mix-ups that do not come from another program: typed name -> the key that may be meant.
NEAR = {"checkpoint": "resume", "resume": "checkpoint", "dir": "data.root", "path": "data.root",
        "exif": "data.exif_orientation"}  # fmt: skip
_NUMBER, _PAIR = re.compile(r"-?\d*\.?\d+(e-?\d+)?"), re.compile(r"\w+=\S+")


def find(name: str) -> Term | None:
    """Return the term of an option (-b, --batch-size) or of its name typed as a key (batch_size); None if unknown."""
    return BY_NAME.get(plain(name)) or BY_NAME.get(plain(name).lower())


def key_for(name: str) -> str | None:
    """Return the key that corresponds to a name, or None."""
    term = find(name)
    return NEAR.get(name) if term is None or not term.here else term.here.strip("'").split()[-1].partition("=")[0]


def split_options(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (argv without the options of other programs, a message for each of them)."""
    rest, kept, found = list(argv), [], []
    while rest:
        token = rest.pop(0)
        name, equals, value = token.partition("=")
        if equals and re.fullmatch(r"[A-Z][A-Z0-9_]+", name):
            key = f", or set nccl.env.{token}" if name.startswith(nccl.PREFIXES) else ""
            found.append(f"{name} is an environment variable. Hint: type {token} before the command{key}.")
            continue
        if not token.startswith("-") or len(token) == 1 or _is_of_hydra(name, rest):
            kept.append(token)
            continue
        if not find(name) and (joined := re.fullmatch(r"(-[a-z]+)(\d+)", name)) and find(joined[1]):  # -b256
            name, equals, value = joined[1], "=", joined[2]
        term = find(name)
        if term is None and name.startswith("--no-") and (opposite := find(name[5:])) and opposite.flag:
            found.append(_message(token, opposite, "false"))
            continue
        if not equals:
            values = _values(term, rest)
            del rest[: len(values)]
            value, token = " ".join(values), " ".join([token, *values])
        found.append(_message(token, term, value))
    return kept, found


def _is_of_hydra(name: str, rest: list[str]) -> bool:
    if name == "-p" and rest and rest[0].isdecimal():
        return False  # pytorch/examples' --print-freq; Hydra's -p is followed by a name
    return name in hydra_flags.FLAGS | hydra_flags.WITH_VALUE


def _values(term: Term | None, rest: list[str]) -> list[str]:
    """Return the leading words of the rest of a line that are the values of an option."""
    if term is not None and term.several:
        pattern = _PAIR if "args.{}" in term.here else _NUMBER
        return rest[: next((number for number, word in enumerate(rest) if not pattern.fullmatch(word)), len(rest))]
    takes = term is not None and not term.flag and rest and "=" not in rest[0] and not re.match(r"-(?!\d)", rest[0])
    return rest[:1] if takes else []


def _message(typed: str, term: Term | None, value: str) -> str:
    """Return the message about one option of another program. typed: with its value."""
    if term is None:
        return f"{typed} is not an option. Hint: options are typed as KEY=VALUE; `--help` shows examples."
    is_off = term.flag and value.lower() in ("false", "0", "no")
    options = _off(term) if is_off else _options(term, value)
    note = "" if is_off else term.note.replace("{}", value or "VALUE")
    if options:
        return f"{typed} is an option of another program. Hint: type {options}{f' ({note})' if note else ''}."
    return f"{typed} is an option of another program. Hint: leave it out{f': {note}' if note else ''}."


def _options(term: Term, value: str) -> str:
    """Return the options to type here, in a shell. value: one value, or several separated by spaces."""
    here = term.values.get(value.lower(), term.here)
    values = [value or "VALUE"]
    if term.several:
        values = value.strip("[]()").replace(",", " ").split()
        values = [",".join(values)] if "[{}]" in here else values
    elif "," in value and "[" not in value + here:
        values = [f"[{value}]"]
    return shlex.join(dict.fromkeys(word.replace("{}", each) for each in values for word in here.split()))


def _off(term: Term) -> str:
    """Return the option that switches off what a flag switches on; "" if leaving it out is enough."""
    key, _, value = term.here.partition("=")
    opposite = {"true": f"{key}=false", "false": f"{key}=true"}
    return term.values.get("false") or opposite.get(value, "")
