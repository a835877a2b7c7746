"""Describe paths for messages, check whether a folder can be created, and list the extensions of image files."""

import os
from collections.abc import Mapping
from pathlib import Path

from imagenet_ddp.errors import ConfigError

# Extensions of image files: torchvision's list, three more formats that Pillow reads, and the other names of JPEGs
_JPEG = (".jpg", ".jpeg", ".jfif", ".jpe", ".jif", ".jfi", ".pjpeg", ".pjp")
IMAGE_EXTENSIONS = frozenset(
    [*_JPEG, ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".avif", ".jp2"]
)


def describe_path(path: Path) -> str:
    """Append the absolute path to a relative one, which depends on the working directory."""
    return str(path) if path.is_absolute() else f"{path} ({path.absolute()})"


def require_current_folder() -> None:
    """Raise ConfigError if the current folder was removed while the shell stayed in it."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise ConfigError(
            "the current folder must exist, but was removed. Hint: cd to another folder, then run the same command "
            "again."
        ) from error


def nearest_existing(path: Path) -> Path:
    """Return the path if it exists, else the nearest of its parents that exists, as an absolute path."""
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())


def not_writable_reason(path: Path) -> str:
    """Return "" if the folder `path` can be written to, or can be created. Otherwise, return why not, such as "/a/b is
    a file"."""
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
