"""Print messages: wrapped between words on a terminal, one line each in a file or pipe, for grep."""

import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import IO

INDENT = "  "

Say = Callable[[str], None]


def wrap_text(text: str, width: int, first: str = "", indent: str = INDENT) -> list[str]:
    """Return lines of at most width columns, with a hint on a new line.

    Paths and text in backticks are never broken, because people copy them. A row of figures is broken only at its bars
    ("|"). first, indent: prefixes of the first line and of the other lines. Input lines that begin with two spaces are
    list items.
    """
    glued = re.sub(r"`[^`]*`", lambda match: match.group().replace(" ", "\0"), text)
    if " | " in glued:
        glued = "\0| ".join(figures.replace(" ", "\0") for figures in glued.split(" | "))
    lines: list[str] = []
    for part in re.split(r"\n| (?=Hint: )", glued):
        is_item = bool(lines) and part.startswith(INDENT)
        item_indent = indent + INDENT * is_item
        lines += textwrap.wrap(
            part.lstrip(" ") if is_item else part,
            width,
            initial_indent=item_indent if lines else first,
            subsequent_indent=item_indent + INDENT * is_item,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return [line.replace("\0", " ") for line in lines]


def fit_to_terminal(text: str, stream: IO[str]) -> str:
    """Return a message, wrapped if the stream is a terminal. Text of several lines (a traceback) is not changed."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    if "\n" in text or len(text) <= width:
        return text
    return "\n".join(wrap_text(text, max(width, 40)))


def print_message(text: str, stream: IO[str] | None = None) -> None:
    """Print a message and flush it. stream: None means standard error."""
    out: IO[str] = sys.stderr if stream is None else stream
    print(fit_to_terminal(text, out), file=out, flush=True)
