"""End a command when the reader of its output has left, or its output is a file on a full disk."""

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from imagenet_ddp.system.console import print_message


@contextmanager
def exit_on_closed_pipe() -> Iterator[None]:
    """Exit silently, with the code of a program ended by SIGPIPE, once the reader of standard output has left (as in
    `| head`). Exit with a message and code 1 if standard output is a file on a full disk. Wraps a whole command."""
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
        if _stdout_takes_a_line():  # standard output is intact; the error is about another file
            raise
        discard_output(sys.stdout)
        reason = (error.strerror or str(error)).lower()
        hint = "Hint: make room on that disk, then run the same command again."
        print_message(f"standard output cannot be written: {reason}. {hint}")
        sys.exit(1)


def _stdout_takes_a_line() -> bool:
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError:
        return False
    return True


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
