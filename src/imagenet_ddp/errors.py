"""Define the errors that are shown to the user without a traceback."""


class ConfigError(Exception):
    """Mistakes in the command or its input: shown without a traceback, exit code 2.

    mistakes: one sentence each, of the form "KEY must be A, got B. Hint: what to set."
    """

    def __init__(self, mistakes: str | list[str]):
        self.mistakes = [mistakes] if isinstance(mistakes, str) else list(mistakes)
        super().__init__("\n".join(self.mistakes))


class RunError(Exception):
    """A failure during a run that one sentence with a Hint explains: a broken image, a loader process out of memory.
    Shown without a traceback, exit code 1."""
