"""Describe paths for messages, and check whether a folder can be created."""

import os
from collections.abc import Mapping
from pathlib import Path

from imagenet_ddp.errors import ConfigError


def describe_path(path: Path) -> str:
    """Append the absolute path to a relative one, which depends on the working directory."""
    return str(path) if path.is_absolute() else f"{path} ({path.absolute()})"


def nearest_existing(path: Path) -> Path:
    """Return the path itself, or its nearest parent that exists."""
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())


def not_writable_reason(path: Path) -> str:
    """Return why a folder cannot be created at `path` or written to, such as "/a/b is a file"; "" if it can."""
    existing = nearest_existing(path)
    if not existing.is_dir():
        return f"{existing} is a file"
    return "" if os.access(existing, os.W_OK | os.X_OK) else f"{existing} is not writable"


def expand_home(text: str) -> Path:
    """Replace a leading ~ or ~USER by the home folder; return the text unchanged if there is no such user."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 Path.expanduser() raises there


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Return $XDG_CACHE_HOME/imagenet_ddp, by default ~/.cache/imagenet_ddp. Raises ConfigError if neither variable is
    set."""
    xdg = environ.get("XDG_CACHE_HOME", "")
    if Path(xdg).is_absolute():  # the XDG base directory specification says that relative paths must be ignored
        return Path(xdg) / "imagenet_ddp"
    home = environ.get("HOME", "")
    if not Path(home).is_absolute():
        raise ConfigError(
            "HOME or XDG_CACHE_HOME must determine the cache folder, but neither is an absolute path. "
            "Hint: put XDG_CACHE_HOME=FOLDER before the command."
        )
    return Path(home) / ".cache" / "imagenet_ddp"
