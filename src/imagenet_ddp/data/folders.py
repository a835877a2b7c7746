"""Reading a tree of class folders: what counts as a class and as an image. No torch: the checks before start use it
too."""

import os
from collections.abc import Iterator
from pathlib import Path

# torchvision's list, and three formats Pillow reads too
EXTENSIONS = frozenset(
    [".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".avif", ".jp2"]
)


def is_image(name: str) -> bool:
    """By extension alone; hidden files are none (macOS leaves ._photo.jpg beside photo.jpg)."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in EXTENSIONS  # noqa: PTH122 (hot loop)


def class_folders(folder: Path) -> list[str]:
    """Names of the sub-folders, sorted; hidden ones left out."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def image_names(folder: Path) -> list[str]:
    """Paths of all images below folder, relative to it, sorted, with / between the parts."""
    return sorted(_walk(str(folder), ""))


def has_image(folder: Path) -> bool:
    """Whether there is at least one; stops at the first."""
    return next(_walk(str(folder), ""), None) is not None


def _walk(folder: str, prefix: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if _is_dir(entry):
                # a link back to a folder above would be walked until the system gives up
                if not entry.name.startswith(".") and not (entry.is_symlink() and _is_above(entry.path)):
                    yield from _walk(entry.path, f"{prefix}{entry.name}/")
            elif is_image(entry.name) and not _is_special(entry):
                yield prefix + entry.name


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def _is_above(link: str) -> bool:
    """Whether the link leads to a folder it lies in."""
    return Path(link).parent.resolve().is_relative_to(Path(link).resolve())


def _is_special(entry: os.DirEntry[str]) -> bool:
    """A pipe or a socket, which reading would wait for; a broken link is kept, so that it is named when it is read."""
    return not entry.is_file() and not entry.is_symlink()
