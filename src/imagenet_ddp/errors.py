"""Define the errors that are shown to the user without a traceback."""

from collections.abc import Iterator


class ConfigError(Exception):
    """One or more mistakes in the command or its input. They are shown without a traceback; the exit code is 2.

    mistakes: one message each, of the form "KEY must be A, got B. Hint: set KEY=C."
    """

    def __init__(self, mistakes: str | list[str]):
        self.mistakes = [mistakes] if isinstance(mistakes, str) else list(mistakes)
        super().__init__("\n".join(self.mistakes))


class RunError(Exception):
    """A failure during a run that one message with a hint explains, such as a broken image or a loader process that ran
    out of memory. It is shown without a traceback; the exit code is 1."""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
