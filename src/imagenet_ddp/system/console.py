"""Print messages: wrapped between words on a terminal, one line each in a file or pipe, for grep."""

import os
import re
import select
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO

INDENT = "  "

Say = Callable[[str], None]


def wrap_text(text: str, width: int, first: str = "", indent: str = INDENT) -> list[str]:
    """Return lines of at most width columns, a Hint on a line of its own. Paths, and text in backticks, are never
    broken, because people copy them; a row of figures is broken only at its bars.

    first, indent: the prefixes of the first line and of the others. Input lines that begin with two blanks are list
    items.
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
    """Return a message wrapped if the stream is a terminal; text of several lines (a traceback) stays as it is."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    if "\n" in text or len(text) <= width:
        return text
    return "\n".join(wrap_text(text, max(width, 40)))


def print_message(text: str, stream: IO[str] | None = None) -> None:
    """Print a message immediately. stream: None: standard error."""
    out: IO[str] = sys.stderr if stream is None else stream
    print(fit_to_terminal(text, out), file=out, flush=True)


@contextmanager
def exit_on_closed_pipe() -> Iterator[None]:
    """Exit silently, with the code of a program ended by SIGPIPE, once the reader of standard output has left (`|
    head`); with a sentence if standard output is a file on a full disk. Wraps a whole command."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        stdout = select.poll()
        stdout.register(sys.stdout.fileno(), 0)
        if not stdout.poll(0):  # another pipe is broken
            raise
        discard_output(sys.stdout)
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        if _stdout_takes_a_line():  # another file is on a full disk
            raise
        discard_output(sys.stdout)
        reason = (error.strerror or str(error)).lower()
        hint = "Hint: make room there, then run the same command again."
        print_message(f"standard output cannot be written: {reason}. {hint}")
        sys.exit(1)


def _stdout_takes_a_line() -> bool:
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError:
        return False
    return True


def discard_output(stream: IO[str]) -> None:
    """Redirect a stream to /dev/null, including its buffer, which Python would otherwise write again at exit."""
    with suppress(OSError, ValueError):  # not a file
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
