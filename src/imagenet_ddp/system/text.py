"""Format counts, fractions, times, lists, errors and commands for display."""

import functools
import os
import re
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

MIB = 2**20  # bytes
# letters that Unicode does not take for accented ones
_BASE_LETTERS = str.maketrans({"æ": "ae", "ð": "d", "đ": "d", "ħ": "h", "ł": "l", "ø": "o", "œ": "oe", "þ": "th"})
UV = "UV_RUN_RECURSION_DEPTH"  # set by `uv run`

SCRIPT = "imagenet-ddp"
LINE = re.compile(r"(?<![\w./-])(?<!uv run )python -m imagenet_ddp(?:\.(\w+))?")  # of a shell

_USER = re.compile(r"://[^/\s?#]*@")  # user:password@ of an address
_QUERY = re.compile(r"([?&][^=&#\s]*(?:token|secret|passw|credential|signature|sig|key)[^=&#\s]*=)[^&#\s'\"]+", re.I)


def count_noun(number: float, noun: str) -> str:
    """Return a number with its noun: "1 image", "1,200 images", "3 classes", "0.5 epochs"."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}{'es' if noun.endswith('s') else 's'}"
    return f"{number:,} {plural}" if isinstance(number, int) else f"{number:g} {plural}"


def percent(fraction: float, digits: int = 2) -> str:
    """Return a fraction as text: "71.23 %"."""
    return f"{100 * fraction:.{digits}f} %"


def format_loss(loss: float, digits: int = 4) -> str:
    """Return a loss as text: "2.3026", "1.234e+05"."""
    return f"{loss:.{digits}f}" if loss < 1e4 else f"{loss:.{digits - 1}e}"


def duration(seconds: float) -> str:
    """Return seconds as text, without those of several days: "0:42", "12:05", "3:10:00", "2d 04:00"."""
    days, rest = divmod(round(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}d {hours:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def shorten_list(names: Sequence[str], at_most: int = 5) -> str:
    """Return a list as text, shortened: "a, b, c, d, e and 1,200 more". In place of "and 1 more" stands that one."""
    at_most += len(names) == at_most + 1
    more = f" and {len(names) - at_most:,} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more


def alphabetical(name: str) -> tuple[str, str]:
    """Return the key by which people expect names to be sorted: without regard to case, with é beside e, and 2 before
    10."""
    letters = unicodedata.normalize("NFKD", name.casefold()).translate(_BASE_LETTERS)
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return re.sub(r"\d+", lambda number: number[0].zfill(20), plain), name


def class_list(names: Iterable[str], at_most: int = 5) -> str:
    """Return names of classes as text, in alphabetical order for people, shortened as by shorten_list."""
    return shorten_list(sorted(names, key=alphabetical), at_most)


def near_names(word: str, names: Iterable[str], at_most: int = 5) -> list[str]:
    """Return the names that a mistyped word may mean, the likeliest first. Those with other digits name other things:
    runs/mine2 and runs/mine3, resnet18 and resnet34."""
    numbered = (name for name in names if re.sub(r"\D", "", name) == re.sub(r"\D", "", word))
    return get_close_matches(word, numbered, at_most)


def without_secrets(value: Any) -> Any:
    """Return text, or the texts in mappings and lists, with words in place of the secrets in addresses: a user name and
    password, and the values of a query that are called a token, a signature or the like."""
    if isinstance(value, str):
        return _QUERY.sub(r"\1VALUE", _USER.sub("://USER:PASSWORD@", value)) if "://" in value else value
    if isinstance(value, Mapping):
        return {key: without_secrets(inner) for key, inner in cast("Mapping[Any, Any]", value).items()}
    return [*map(without_secrets, cast("list[Any]", value))] if isinstance(value, list | tuple) else value


def printable(text: str) -> str:
    """Escape control characters and bytes that are not UTF-8, so that the text is one plain line."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def as_in_tables(name: str) -> str:
    """Return a name as the tables have it that this program writes: bytes that are not UTF-8 are escaped."""
    return name.encode(errors="backslashreplace").decode()


def for_terminal(text: str) -> str:
    """Escape what `printable` escapes, except the ends of lines: names of files and classes must not control a
    terminal. Hide the secrets in addresses. Write command lines as this command was typed."""
    return "\n".join(map(printable, as_typed(without_secrets(text)).split("\n")))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def first_sentence(error: BaseException) -> str:
    """Return the first line of an error's text, ending in a full stop."""
    return first_line(error).rstrip(".") + "."


def load_error(error: BaseException) -> str:
    """Return why torch.load(weights_only=True) refused a file, without its advice to load the file unsafely."""
    if found := re.search(r"GLOBAL (\S+)", str(error)):
        return f"it contains {found[1]}, which could run code of its author, besides tensors and plain values"
    reason = first_line(error).rstrip(".")
    if "central directory" in reason:  # with five lines of causes
        return "its end is missing"
    return "it was not written by torch.save" if "mmap" in reason or "weights_only" in reason else reason


@functools.cache
def typed_program() -> tuple[str, str]:
    """Return (how a line begins, what stands before a command's name), as this process was started: python -m
    imagenet_ddp., .venv/bin/python -m imagenet_ddp., imagenet-ddp."""
    start, is_script = "uv run " if UV in os.environ else "", Path(sys.argv[0]).name == SCRIPT
    name, typed = (SCRIPT, sys.argv[0]) if is_script else ("python", sys.orig_argv[0])
    found = shutil.which(name)  # what a shell starts
    if not (start or (found and os.path.abspath(found) == os.path.abspath(typed))):  # noqa: PTH100
        name = shlex.quote(typed)
    return (f"{start}{name}", " ") if is_script else (f"{start}{name} -m imagenet_ddp", ".")


def as_typed(text: str) -> str:
    """Return a text whose command lines begin as this process was started, instead of with `python -m`."""
    program, before_verb = typed_program()
    return LINE.sub(lambda found: program + (before_verb + found[1] if found[1] else ""), text)


_UNITS_OF_TIME = {r"d(?:ays?)?": 86400, r"h(?:(?:ou)?rs?)?": 3600, r"m(?:in(?:ute)?s?)?": 60, r"s(?:ec(?:ond)?s?)?": 1}
_BY_UNIT = re.compile("".join(rf"(?:(\d+(?:\.\d+)?) ?{unit} ?)?" for unit in _UNITS_OF_TIME), re.ASCII)
_BY_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d\d):(\d\d)", re.ASCII)


def seconds_in(text: str) -> float | None:
    """Return the seconds of a time as people type it: 1h30m, 90 min, 1:30:00; None for other text, such as 1:30, which
    may be hours or minutes."""
    found = _BY_CLOCK.fullmatch(text) or _BY_UNIT.fullmatch(text)
    if not text or found is None:
        return None
    return sum(float(count or 0) * unit for count, unit in zip(found.groups(), _UNITS_OF_TIME.values(), strict=True))


def shown(value: Any) -> str:
    """Format a value as it is typed: null, true, [0,3], text without quotes."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return "{" + ",".join(f"{key}:{shown(item)}" for key, item in items) + "}"
    if not isinstance(value, str) and hasattr(value, "__iter__"):
        return "[" + ",".join(shown(item) for item in value) + "]"
    return str(value) if value != "" else "empty"
