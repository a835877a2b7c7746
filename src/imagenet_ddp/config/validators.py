"""Describe the allowed values of a key, and report a value that is not allowed."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

from imagenet_ddp.mistakes import Fix, Mistake, must_be
from imagenet_ddp.system.text import near_names, shown


@dataclass(frozen=True)
class Kind:
    """A set of allowed values. forms: the alternatives in words, each of which completes "must be ...". nearest: the
    allowed value, as it is typed, that a wrong one probably means; None if there is none."""

    forms: tuple[str, ...]
    accepts: Callable[[Any], bool]
    nearest: Callable[[Any], str | None] = lambda value: None

    def __or__(self, other: "Kind") -> "Kind":
        forms = tuple(dict.fromkeys(self.forms + other.forms))
        return Kind(
            forms,
            lambda value: self.accepts(value) or other.accepts(value),
            lambda value: self.nearest(value) or other.nearest(value),
        )

    @property
    def words(self) -> str:
        *first, last = self.forms
        return f"{', '.join(first)} or {last}" if first else last


@dataclass(frozen=True)
class Example:
    """A value to propose in a hint; an explanation may follow it: "0 (no limit)"."""

    text: str


@dataclass(frozen=True)
class Instead:
    """An option to type in place of a key with one of these values, as other programs have them."""

    values: tuple[str, ...]
    option: str
    aim: str = ""  # as in Fix


@dataclass(frozen=True)
class PerMachine:
    """The mark of a key that each machine of a run sets for itself, such as a mount point. entries: of a dict, the
    names that this is true of, as a regular expression."""

    entries: str = ""


def kind(words: str, accepts: Callable[[Any], bool]) -> Kind:
    return Kind((words,), accepts)


def is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


_NOTHING = ("none", "null", "off", "false", "no")  # words that turn a thing off, each in another program
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def is_nothing(value: Any) -> bool:
    """Return whether a value, as it is typed, turns a thing off, in this program or another one."""
    return shown(value).lower() in _NOTHING


def _number_in(value: Any, accepts: Callable[[Any], bool]) -> str | None:
    """Return the accepted number that a value of another type probably means: 10 for ten, 10.0, [10,10], (10, 10) or
    10x10, 0.2 for 20%."""
    members = cast("list[Any]", value) if isinstance(value, list) else [value]
    value = members[0] if len({*map(str, members)}) == 1 else None
    word = re.sub(r"[][()\s]", "", str(value).lower())
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e-?\d+)?)(?:(%)|[x,]\1)?", word, re.ASCII)
    meant = float(found[1]) if found else WORDS.index(word) if word in WORDS else None
    if meant is None or isinstance(value, bool):
        return None
    meant = meant / 100 if found and found[2] else meant
    whole = int(meant) if meant == int(meant) else meant
    return str(whole) if accepts(whole) else None


def integer(least: int | None = None, most: int | None = None) -> Kind:
    """Accept an int between least and most, both included; true and false are not ints."""

    def accepts(value: Any) -> bool:
        fits = isinstance(value, int) and not isinstance(value, bool)
        return fits and (least is None or value >= least) and (most is None or value <= most)

    span = f" from {least} to {most}" if most is not None else f" ≥ {least}" if least is not None else ""
    return Kind(
        (f"an integer{span}",), accepts, lambda value: None if "%" in str(value) else _number_in(value, accepts)
    )


def number(least: float = -math.inf, most: float = math.inf, above: float = -math.inf, below: float = math.inf) -> Kind:
    """Accept a finite int or float; least and most are included, above and below are not."""

    def accepts(value: Any) -> bool:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return fits and least <= value <= most and above < value < below

    ends = [f"{sign} {end:g}" for sign, end in zip(("≥", ">", "≤", "<"), (least, above, most, below), strict=True)]
    bounds = " and ".join(text for text in ends if "inf" not in text)
    words = f"a number {bounds}" if bounds else "a number"

    def nearest(value: Any) -> str | None:
        is_percent = min(most, below) <= 1 and isinstance(value, int | float) and (value >= 10 or value % 5 == 0)
        return _number_in(0 if is_nothing(value) else f"{shown(value)}%" if is_percent else value, accepts)

    return Kind((words,), accepts, nearest)


def choice(*options: Any, meant: Mapping[str, str] | None = None) -> Kind:
    """Accept one of the options. Types are compared too, so that true does not equal 1. meant: words of other programs
    -> the option."""

    def accepts(value: Any) -> bool:
        return any(type(value) is type(option) and value == option for option in options)

    names = tuple(map(shown, options))

    def nearest(value: Any) -> str | None:
        word = shown(value).lower()
        if is_nothing(word) and word not in (meant or {}):
            return next(filter(is_nothing, names), None)
        if "," in word:  # several, of which none is meant alone
            return None
        near = near_names(word.rpartition(".")[2], names)  # of torch.optim.AdamW, the last word
        return (meant or {}).get(word) or next(iter(near), None)

    return Kind(names, accepts, nearest)


def matching(pattern: str, words: str) -> Kind:
    """Accept text that fully matches the regular expression."""
    return kind(words, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


def list_of(
    member: Kind, words: str, length: int | None = None, *, least: int = 1, has_equal_parts: bool = False
) -> Kind:
    """Accept a list whose members are of this kind. length: number of members; None: at least `least`. has_equal_parts:
    whether one value probably means that of each member."""

    def accepts(value: Any) -> bool:
        if isinstance(value, str) or is_mapping(value) or not hasattr(value, "__len__"):
            return False
        return (len(value) == length if length else len(value) >= least) and all(map(member.accepts, value))

    def nearest(value: Any) -> str | None:
        if has_equal_parts and length:
            members = cast("list[Any]", value) if isinstance(value, list) else [value]
            is_one = len(members) == 1 and member.accepts(members[0])
            return f"[{','.join(map(shown, members * length))}]" if is_one else None
        return None if length or not member.accepts(value) else f"[{shown(value)}]"

    return Kind((words,), accepts, nearest)


FLAG = choice(
    True, False, meant={"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}
)
NULL = kind("null", lambda value: value is None)
AUTO = choice("auto")
TEXT = matching(r"(?s).*", "text")
TEXTS = list_of(TEXT, "a list of text", least=0)


def expect(key: str, value: Any, allowed: Kind, *fixes: Fix) -> list[Mistake]:
    return [] if allowed.accepts(value) else [must_be(key, allowed.words, shown(value), *fixes)]
