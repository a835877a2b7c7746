"""Say where a path leads, and whether a folder can be made there."""

import os
from pathlib import Path


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
