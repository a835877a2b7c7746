"""Numbers and commands before people."""

import os

_UV = "UV_RUN_RECURSION_DEPTH"  # set by `uv run`


def counted(number: int, noun: str) -> str:
    """1 image, 1,200 images, 3 classes."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"


def uv_run() -> str:
    """The start of a command as it is typed here: "uv run ", or nothing without uv."""
    return "uv run " if _UV in os.environ else ""


def install(requirement: str) -> str:
    """The command that installs into the running environment; one that uv made holds no pip."""
    return f"{'uv' if _UV in os.environ else 'python -m'} pip install '{requirement}'"
