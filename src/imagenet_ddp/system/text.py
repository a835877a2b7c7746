"""Format counts, fractions, times, lists, errors and commands for display."""

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

MIB = 2**20  # bytes
_UV = "UV_RUN_RECURSION_DEPTH"  # set by `uv run`


def count_noun(number: int, noun: str) -> str:
    """Return a number with its noun: "1 image", "1,200 images", "3 classes"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"


def percent(fraction: float, digits: int = 2) -> str:
    """Return a fraction as text: "71.23 %"."""
    return f"{100 * fraction:.{digits}f} %"


def format_loss(loss: float, digits: int = 4) -> str:
    """Return a loss as text: "2.3026", "1.234e+05"."""
    return f"{loss:.{digits}f}" if loss < 1e4 else f"{loss:.{digits - 1}e}"


def duration(seconds: float) -> str:
    """Return seconds as text: "0:42", "12:05", "3:10:00", "2d 04:00:00"."""
    days, rest = divmod(round(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}d {hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def shorten_list(names: Sequence[str], at_most: int = 5) -> str:
    """Return a list as text, shortened: "a, b, c, d, e and 1,200 more"."""
    more = f" and {len(names) - at_most:,} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more


def printable(text: str) -> str:
    """Escape control characters and bytes that are not UTF-8, so that the text is one plain line."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def load_error(error: BaseException) -> str:
    """Return why torch.load(weights_only=True) refused a file, without its advice to load the file unsafely."""
    if found := re.search(r"GLOBAL (\S+)", str(error)):
        return f"it contains {found[1]}, which could run code of its author, besides tensors and plain values"
    reason = first_line(error).rstrip(".")
    if "central directory" in reason:  # with five lines of causes
        return "its end is missing"
    return "it was not written by torch.save" if "mmap" in reason or "weights_only" in reason else reason


def uv_run() -> str:
    """Return the start of a command: "uv run " if this process was started by `uv run`, else ""."""
    return "uv run " if _UV in os.environ else ""


def install(requirement: str) -> str:
    """Return the command that installs a package into the running environment. `uv pip` is told which one, because it
    prefers the activated environment to that of `uv run`. An environment created by uv has no pip."""
    if _UV not in os.environ and importlib.util.find_spec("pip"):
        return f"python -m pip install '{requirement}'"
    prefix = Path(sys.prefix)
    shown = prefix.relative_to(Path.cwd()) if prefix.is_relative_to(Path.cwd()) else prefix
    return f"uv pip install -p {shlex.quote(str(shown))} '{requirement}'"


def missing_package(what: str, *packages: str, requirement: str = "", instead: str = "") -> list[str]:
    """Return the message that a package is not installed; [] if all are.

    what: the option that needs them. requirement: what to install, by default the package. instead: another way out.
    """
    missing = next((package for package in packages if importlib.util.find_spec(package) is None), None)
    if missing is None:
        return []
    hint = f"run `{install(requirement or missing)}`{f', or {instead}' if instead else ''}"
    return [f"{what} needs the package {missing}, which is not installed. Hint: {hint}."]
