"""The hint of a message that is text by now: a line of a log, or what a command printed."""

import re


def hint_of(text: str) -> str:
    """Return what follows "Hint: ", "" if nothing does."""
    return text.partition("Hint: ")[2]


def options_of(text: str) -> list[str]:
    """Return the options KEY=VALUE that the hint of a message says to set."""
    return re.findall(r"[\w.]+=\S+", hint_of(text))
