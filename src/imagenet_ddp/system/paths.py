"""Say where a path leads, and whether a folder can be made there."""

import os
from collections.abc import Mapping
from pathlib import Path

from imagenet_ddp.errors import ConfigError


def shown_path(path: Path) -> str:
    """Add to a relative path where it leads, because that depends on the folder the command was typed in."""
    return str(path) if path.is_absolute() else f"{path} ({path.absolute()})"


def nearest_folder(path: Path) -> Path:
    """Return what exists of the path: itself or its nearest parent."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def obstacle(path: Path) -> str:
    """Return why no folder can be made at path or written in: "/a/b is a file", "/a cannot be written in"; or ""."""
    there = nearest_folder(path)
    if not there.is_dir():
        return f"{there} is a file"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written in"


def cache_dir(environ: Mapping[str, str]) -> Path:
    """$XDG_CACHE_HOME/imagenet_ddp, by default ~/.cache/imagenet_ddp. ConfigError: neither variable says a place."""
    xdg = environ.get("XDG_CACHE_HOME", "")
    if Path(xdg).is_absolute():  # the XDG base directory specification: a relative path is to be ignored
        return Path(xdg) / "imagenet_ddp"
    home = environ.get("HOME", "")
    if not Path(home).is_absolute():
        raise ConfigError(
            "HOME or XDG_CACHE_HOME must name the folder for the generated images, but neither is an "
            "absolute path. Hint: set data.root=FOLDER."
        )
    return Path(home) / ".cache" / "imagenet_ddp"
