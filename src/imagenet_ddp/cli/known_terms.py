"""Map the options of other programs to the keys of this one. The table is known_terms.txt, from which hints and
docs/coming-from.md are made."""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Term:
    """One line of known_terms.txt, whose first lines explain the format. flag: the option accepts no value. several: it
    accepts more than one value (nargs="+")."""

    names: tuple[str, ...]
    here: str
    note: str
    role: str
    flag: bool
    several: bool


def _read() -> tuple[list[Term], dict[str, dict[str, str]]]:
    """Return (the terms, role -> {value in the other program: options to type here})."""
    terms: list[Term] = []
    values: dict[str, dict[str, str]] = {}
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("    "):
            there, _, here = line.partition(" :")
            values.setdefault(terms[-1].role, {}).update(dict.fromkeys(there.split(), here.strip()))
        elif not line.startswith("#"):
            names, here, note, role = ([cell.strip() for cell in line.split("|")] + [""])[:4]
            flag, several = names.startswith("!"), names.startswith("*")
            terms.append(Term(tuple(names.lstrip("!* ").split()), here, note, role, flag, several))
    return terms, values


TERMS, VALUES = _read()
# Likely mix-ups that do not come from another program: typed name -> the key that may be meant.
NEAR = {"checkpoint": "resume", "resume": "checkpoint", "dir": "data.root", "path": "data.root",
        "exif": "data.exif_orientation"}  # fmt: skip


def plain(name: str) -> str:
    """Return a name without leading dashes and with underscores: dist_url for --dist-url. A short option such as -b
    keeps its dash, because -b and a key named b differ."""
    bare = name.lstrip("-")
    return name if name.startswith("-") and not name.startswith("--") else bare.replace("-", "_")


BY_NAME = {plain(name): term for term in TERMS for name in term.names}


def find(name: str) -> Term | None:
    """Return the term of an option (-b, --batch-size) or of its name typed as a key (batch_size); None if unknown."""
    return BY_NAME.get(plain(name)) or BY_NAME.get(plain(name).lower())


def key_for(name: str) -> str | None:
    """Return the key that corresponds to a name, or None."""
    term = find(name)
    return NEAR.get(name) if term is None or not term.here else term.here.strip("'").split()[-1].partition("=")[0]


def options(term: Term, value: str) -> list[str]:
    """Return the options to type here. value: one value, or several separated by spaces."""
    values, here = [value], _by_value(term, value.lower())
    if term.several:
        values = value.strip("[]()").replace(",", " ").split()
        values = [",".join(values)] if "[{}]" in here else values
    found = [word.strip("'").replace("{}", each) for each in values for word in here.split()]
    if term.role == "timm_policy" and value.startswith("rand"):
        found = [f"data.policy={value if value != 'rand' else 'rand-m10'}"]
    elif term.role == "timm_policy" and found:  # augmix-m5-w4-d2
        names = {"m": "policy_magnitude", "w": "policy_ops"}
        found += [f"data.{names[kind]}={number}" for kind, number in re.findall(r"-([mw])(\d+)(?=-|$)", value)]
    return found


def off_options(term: Term) -> list[str]:
    """Return the options that switch off what an option without a value switches on; [] if leaving it out is enough."""
    if found := VALUES.get(term.role, {}).get("false"):
        return [found]
    opposite = {"true": "false", "false": "true"}
    key, _, value = term.here.partition("=")
    return [f"{key}={opposite[value]}"] if value in opposite else []


def _by_value(term: Term, value: str) -> str:
    known = VALUES.get(term.role, {})
    if term.role == "timm_policy":
        value = value.partition("-")[0]
    return known.get(value, term.here)
