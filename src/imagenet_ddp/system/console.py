"""Sentences before people: on a terminal broken between words, in a file or a pipe one line each, for grep."""

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


def wrapped(text: str, width: int, first: str = "", indent: str = INDENT) -> list[str]:
    """Lines of at most width columns, a Hint on one of its own. first, indent: in front of the first line, of the
    others; a further line that begins with two blanks is a row of a list. What stands in backticks is a line to type
    and never broken, nor is a path; a row of figures is broken at its bars alone."""
    glued = re.sub(r"`[^`]*`", lambda match: match.group().replace(" ", "\0"), text)
    if " | " in glued:
        glued = "\0| ".join(figures.replace(" ", "\0") for figures in glued.split(" | "))
    lines: list[str] = []
    for part in re.split(r"\n| (?=Hint: )", glued):
        is_row = bool(lines) and part.startswith(INDENT)
        deeper = indent + INDENT * is_row
        lines += textwrap.wrap(
            part.lstrip(" ") if is_row else part,
            width,
            initial_indent=deeper if lines else first,
            subsequent_indent=deeper + INDENT * is_row,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return [line.replace("\0", " ") for line in lines]


def shown(text: str, stream: IO[str]) -> str:
    """As it is printed to the stream."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    if "\n" in text or len(text) <= width:  # a traceback is laid out already
        return text
    return "\n".join(wrapped(text, max(width, 40)))


@contextmanager
def until_closed() -> Iterator[None]:
    """Around all of a command that prints its answer: who reads it may have seen enough (| head), and the command then
    ends without a word, with the exit code of a program that SIGPIPE has ended."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        polled = select.poll()
        polled.register(sys.stdout.fileno(), 0)
        if not polled.poll(0):  # it was another pipe
            raise
        discard(sys.stdout)
        sys.exit(128 + signal.SIGPIPE)


def discard(stream: IO[str]) -> None:
    """From now on, because nobody reads it: also what waits in its buffer, which Python would try once more at its
    end."""
    with suppress(OSError, ValueError):  # no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def print_message(text: str, stream: IO[str] | None = None) -> None:
    """At once; stream: None: standard error."""
    to: IO[str] = sys.stderr if stream is None else stream
    print(shown(text, to), file=to, flush=True)


Say = Callable[[str], None]
