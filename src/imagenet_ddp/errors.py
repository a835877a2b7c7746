"""Define the errors that are shown to the user without a traceback, and turn exceptions that would end a run without an
error into one of them."""

import functools
import os
import re
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

from imagenet_ddp.mistakes import Mistake

P = ParamSpec("P")
R = TypeVar("R")
# files of installed packages, of Python and of this one
LIBRARY = re.compile(
    r".*[/\\](site|dist)-packages[/\\]|<|"
    + "|".join(re.escape(f"{Path(file).parent}{os.sep}") for file in (os.__file__, __file__))
)


class ConfigError(Exception):
    """One or more mistakes in the command or its input. They are shown without a traceback; the exit code is 2."""

    def __init__(self, mistakes: str | Mistake | Iterable[str | Mistake], hint: str = ""):
        """mistakes: a sentence is what was expected and what was found. hint: advice that follows it."""
        found = [mistakes] if isinstance(mistakes, str | Mistake) else mistakes
        self.mistakes = [each if isinstance(each, Mistake) else Mistake(each, hint=hint) for each in found]
        super().__init__("\n".join(map(str, self.mistakes)))


class SharedError(ConfigError):
    """Error that every rank receives in the same words, so that only one process per machine needs to print it."""

    def __init__(self, mistakes: str | list[str], code: int = 2):
        super().__init__(mistakes)
        self.code = code


class RunError(Exception):
    """A failure during a run that one message with a hint explains, such as a broken image or a loader process that ran
    out of memory. It is shown without a traceback; the exit code is 1."""

    def __init__(self, what: str, hint: str = ""):
        """what: sentences on what happened. hint: advice that follows them; it may be a part of what."""
        self.what = what
        super().__init__(f"{what} Hint: {hint}." if hint else what)


class SignalExit(SystemExit):
    """Raised when a signal ends the process while there is nothing to save."""

    def __init__(self, number: int):
        self.exit_code = 128 + number
        super().__init__(self.exit_code)
        self.signal_name = signal.Signals(number).name

    def __str__(self) -> str:
        return f"Stopped by {self.signal_name}, with nothing to save yet."


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def is_silent_end(error: BaseException) -> bool:
    """Return whether an exception of a user's own code would end a loop of torch or Lightning, or the process, without
    being reported as a failure: StopIteration, SystemExit, GeneratorExit, asyncio.CancelledError and the like.
    KeyboardInterrupt and SignalExit are stops."""
    if isinstance(error, KeyboardInterrupt | SignalExit):
        return False
    return isinstance(error, StopIteration) or not isinstance(error, Exception)


def own_place(error: BaseException) -> str:
    """Return where an exception was raised in the innermost code of the user's own, such as "mine.py, line 12, in
    read", or "" if it passed through none."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((_place(frame) for frame in reversed(frames) if not LIBRARY.match(frame.filename)), "")


def place_of(error: BaseException) -> str:
    """Return own_place(error), or where the exception was raised if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    return own_place(error) or (_place(frames[-1]) if frames else "at an unknown place")


def _place(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}"


def silent_end(error: BaseException, who: str) -> str:
    """Return the message for an exception that would have ended the run without an error. who: what raised it."""
    return (
        f"{who} raised {type(error).__name__} ({place_of(error)}), which Python does not take for a failure: the run "
        "would end without an error. Hint: raise another exception there, such as RuntimeError."
    )


def reports_silent_ends(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that calls code of the user's own, so that an exception that would end the run without an
    error is a RunError."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if not is_silent_end(error):
                raise
            raise RunError(silent_end(error, function.__name__)) from error

    return call
