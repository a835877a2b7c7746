"""Define the errors that are shown to a person without a traceback."""


class ConfigError(Exception):
    """Mistakes in the command or its input: shown without a traceback, exit code 2.

    mistakes: one sentence each, of the form "expected, found (and where it came from). Hint: what to set."
    """

    def __init__(self, mistakes: str | list[str]):
        self.mistakes = [mistakes] if isinstance(mistakes, str) else list(mistakes)
        super().__init__("\n".join(self.mistakes))


class RunError(Exception):
    """What went wrong while a run was going on, and is explained by one sentence with a Hint: a broken image, a loader
    process without memory. Shown without a traceback, exit code 1."""
