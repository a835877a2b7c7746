"""Decide which names mean the same class, in folders and tables. This module does not import torch."""

import re
import unicodedata
from collections.abc import Iterable

# What spreadsheets, pandas and databases write into a cell that has no value
_NO_LABEL = frozenset(["", "nan", "-nan", "none", "null", "nil", "n/a", "na", "#n/a", "#na", "<na>", "nat"])
_WHOLE = re.compile(r"(\d+)(\.0+)?", re.ASCII)


def one_form(name: str) -> str:
    """Return the name in the Unicode form in which é is one character. macOS stores file names with two."""
    return unicodedata.normalize("NFC", name)


def is_missing(label: str) -> bool:
    """Return whether a cell is empty or has a word for "no value", in any case."""
    return label.strip().casefold() in _NO_LABEL


def of_cells(labels: list[str]) -> list[str]:
    """Return the class names of a table's labels. If all labels are whole numbers, 1.0 is 1: a column of numbers with
    empty cells is written that way."""
    names = {label: one_form(label) for label in set(labels)}
    matches = {label: _WHOLE.fullmatch(name) for label, name in names.items() if not is_missing(name)}
    if all(matches.values()) and any(match[2] for match in matches.values() if match):
        names |= {label: match[1] for label, match in matches.items() if match}
    return [names[label] for label in labels]


def lookalikes(names: Iterable[str]) -> str:
    """Return a sentence about classes whose names differ only in case or blanks, or "" if there are none. They stay
    different classes: handwritten letters may be a and A."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(" ".join(one_form(name).casefold().split()), []).append(name)
    found = [" and ".join(map(repr, group)) for group in groups.values() if len(group) > 1]
    if not found:
        return ""
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return (
        f"Classes whose names differ only in case or blanks are different classes: {'; '.join(found[:5])}{more}. "
        "Hint: if they are the same, give them one name."
    )
