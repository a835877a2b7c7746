"""Print messages: wrapped between words on a terminal, one line each in a file or pipe, for grep. Show the progress of
a long task in a line that the next message replaces. Go on or end quietly when nobody reads the output."""

import errno
import io
import os
import re
import select
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import IO

from imagenet_ddp.system.text import duration, for_terminal, percent

INDENT = "  "

Say = Callable[[str], None]


def wrap_text(text: str, width: int, first: str = "", indent: str = INDENT) -> list[str]:
    """Return lines of at most width columns, with a hint on a new line.

    Paths and text in backticks are never broken, because people copy them, and no number is parted from its "%". A row
    of figures is broken only at its bars ("|"). first, indent: prefixes of the first line and of the other lines. Input
    lines that begin with two spaces are list items.
    """
    glued = re.sub(r"`[^`]*`|\d %", lambda match: match.group().replace(" ", "\0"), text)
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


def print_message(text: str, stream: IO[str] | None = None, *, whole: bool = False) -> None:
    """Print a message and flush it. stream: None means standard error. whole: do not wrap it on a terminal, because it
    is a row of a table, or a command that people copy."""
    out: IO[str] = sys.stderr if stream is None else stream
    text = for_terminal(text)
    erase_drawn()
    print(text if whole else fit_to_terminal(text, out), file=out, flush=True)


_drawn: list[Callable[[], None]] = []  # erases the line of progress that stands on the terminal, if one does


def drawn(erase: Callable[[], None]) -> None:
    """Remember that a line of progress stands on the terminal, to be erased before anything else is printed."""
    if erase not in _drawn:
        erase_drawn()
        _drawn.append(erase)


def erase_drawn() -> None:
    """Erase the line of progress that stands on the terminal, if one does, so that no message runs into it."""
    lines, _drawn[:] = [*_drawn], []
    for erase in lines:
        erase()


class Printable(io.TextIOBase):
    """Write text to a stream as print_message does, for what other packages print of names from files of other
    people."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def write(self, text: str, /) -> int:
        self._stream.write(for_terminal(text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


@contextmanager
def exit_on_closed_pipe() -> Generator[None]:
    """Exit silently, with the code of a program ended by SIGPIPE, once the reader of standard output has left (as in
    `| head`), and with a message and code 1 if the output fills its disk. Wraps a whole command."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        stdout = select.poll()
        stdout.register(sys.stdout.fileno(), 0)
        if not stdout.poll(0):  # standard output is intact; the broken pipe is another one
            raise
        discard_output(sys.stdout)
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        discard_output(sys.stdout)
        print_message("the output cannot be written: its disk is full. Hint: make room there, then run this again.")
        sys.exit(1)


def discard_closed_terminal() -> None:
    """Redirect standard output and error to /dev/null if their terminal has been closed, so that writing to them does
    not fail while a run saves. Call when SIGHUP arrives."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # not a file
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            if poll.poll(0):
                discard_output(stream)


def discard_output(stream: IO[str]) -> None:
    """Redirect a stream to /dev/null, including its buffer, which Python would otherwise write again at exit."""
    with suppress(OSError, ValueError):  # the stream is not a file
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


LINE_S = 5.0  # seconds between two lines
REDRAW_S = 0.2  # the same on a terminal


class Progress:
    """Show on stderr how much of `total` is done, the speed, and the time left.

    total: in `unit`. rate: whether to show units per second. The attribute more: a function that returns text to add to
    each line.
    """

    def __init__(self, title: str, total: int, unit: str, *, rate: bool = True):
        self.more: Callable[[], str] = lambda: ""
        self.title, self.total, self.unit = title, total, unit
        self.done = 0
        self._rate = rate
        self._stream = sys.stderr
        self._is_terminal = self._stream.isatty()
        self._begin_s = time.monotonic()
        self._first: tuple[int, float] | None = None  # done, and when, after what starts once: processes, or a net
        self._next_s = self._begin_s + (0 if self._is_terminal else LINE_S)

    def add(self, done: int) -> None:
        self.done += done
        now = time.monotonic()
        self._first = self._first or (self.done, now)
        if now < self._next_s:
            return
        self._next_s = now + (REDRAW_S if self._is_terminal else LINE_S)
        if self._is_terminal:  # the line is replaced by the next one
            text = self.line()[: shutil.get_terminal_size().columns - 1]
            drawn(self._erase)
            print(f"\r{text}\x1b[K", end="", file=self._stream, flush=True)
        else:
            print(self.line(), file=self._stream, flush=True)

    def line(self) -> str:
        """Return a line such as "train: 312,000 of 1,281,167 images (24.4 %), 4,100 images/s, 3:56 left"."""
        text = f"{self.title}: {self.done:,} of {self.total:,} {self.unit} ({percent(self._fraction, 1)})"
        begin, begin_s = self._first or (0, 0.0)
        if self.done == begin or (seconds := time.monotonic() - begin_s) <= 0:
            return text + self.more()
        speed = (self.done - begin) / seconds
        if self._rate:
            text += f", {speed:,.0f} {self.unit}/s"
        return f"{text}, {duration(max(self.total - self.done, 0) / speed)} left{self.more()}"

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin_s

    def close(self) -> None:
        """Remove the line from a terminal."""
        erase_drawn()

    def _erase(self) -> None:
        print("\r\x1b[K", end="", file=self._stream, flush=True)

    @property
    def _fraction(self) -> float:
        return min(self.done / max(self.total, 1), 1.0)
