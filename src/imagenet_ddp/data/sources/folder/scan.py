"""Reading a tree of class folders: what counts as a class and as an image. No torch: the checks before start use it
too."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

# torchvision's list, and three formats Pillow reads too
EXTENSIONS = frozenset(
    [".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".avif", ".jp2"]
)

Real = tuple[int, int]  # device and inode of a folder


def is_image(name: str) -> bool:
    """By extension alone; hidden files are none (macOS leaves ._photo.jpg beside photo.jpg)."""
    _, dot, extension = name.rpartition(".")  # os.path.splitext takes three times as long
    return dot + extension.lower() in EXTENSIONS and not name.startswith(".")


def class_folders(folder: Path) -> list[str]:
    """Names of the sub-folders, sorted; hidden ones and links to where they lie left out."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_class(entry))


def image_names(folder: Path, links: "LinkFilter | None" = None) -> list[str]:
    """Paths of all images below folder, relative to it, sorted, with / between the parts. links: the split of a class
    folder, so that its images are those that training reads; None: the folder itself."""
    return sorted(_walk(str(folder), links or LinkFilter(folder)))


def has_image(folder: Path, links: "LinkFilter | None" = None) -> bool:
    """Whether there is at least one; stops at the first."""
    return next(_walk(str(folder), links or LinkFilter(folder)), None) is not None


class LinkFilter:
    """A split, links into which are not followed: what they lead to is an image of another class, or seen already.

    folder: of class folders. classes: of which some may be links to elsewhere.
    """

    def __init__(self, folder: Path, classes: Sequence[str] = ()):
        self._folder, self._classes = folder, classes

    @cached_property
    def _real_paths(self) -> tuple[str, set[str]]:
        """Real paths of the split and of its classes; resolved at the first link, as most splits have none."""
        own = os.path.realpath(self._folder)
        return own, {own, *(os.path.realpath(self._folder / name) for name in self._classes)}

    def leads_inside(self, link: str) -> bool:
        """Return whether the link leads into the split, or to a folder above it."""
        real = os.path.realpath(link)
        own, folders = self._real_paths
        return _is_in(own, real) or not folders.isdisjoint([real, *map(str, Path(real).parents)])


class LinkedFolders:
    """Links to folders elsewhere that were met in one class. Each such folder is gone into once, by the link that comes
    first in order: whichever way the disk or threads answer."""

    def __init__(self) -> None:
        self._met: list[tuple[str, Real]] = []
        self._followed: set[Real] = set()

    def add(self, prefix: str, real: Real) -> None:
        self._met.append((prefix, real))

    def follow(self) -> list[str]:
        """Return prefixes to walk once all other folders are done."""
        found = []
        for prefix, real in sorted(self._met):
            if real not in self._followed:
                self._followed.add(real)
                found.append(prefix)
        self._met.clear()
        return found


@dataclass
class Content:
    """One folder, without what lies in its sub-folders."""

    images: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)  # to be walked too
    links: dict[str, Real] = field(default_factory=dict)  # to folders elsewhere
    left_out: Counter[str] = field(default_factory=Counter)  # "hidden", "special", or an extension -> files


def content(folder: str, links: LinkFilter) -> Content:
    found = Content()
    with os.scandir(folder) as entries:
        for entry in entries:
            match _kind(entry, links):
                case "image":
                    found.images.append(entry.name)
                case "folder":
                    found.folders.append(entry.name)
                case "link":
                    found.links[entry.name] = _real(entry)
                case "no folder":
                    pass
                case reason:
                    found.left_out[reason] += 1
    return found


def _walk(folder: str, links: LinkFilter) -> Iterator[str]:
    todo, elsewhere = [""], LinkedFolders()
    while todo:
        prefix = todo.pop()
        with os.scandir(f"{folder}/{prefix}") as entries:
            for entry in entries:
                kind = _kind(entry, links)
                if kind == "image":
                    yield prefix + entry.name
                elif kind == "folder":
                    todo.append(f"{prefix}{entry.name}/")
                elif kind == "link":
                    elsewhere.add(f"{prefix}{entry.name}/", _real(entry))
        todo = todo or elsewhere.follow()


def _kind(entry: os.DirEntry[str], links: LinkFilter) -> str:
    """image, folder, link (to a folder elsewhere), no folder (one not to go into), or why a file is left out."""
    name = entry.name
    if is_image(name) and _is_file(entry):  # nearly all are
        return "image"
    if _is_dir(entry):
        if name.startswith("."):
            return "no folder"
        if not entry.is_symlink():
            return "folder"
        # a link back would be walked until the system gives up
        return "no folder" if _is_above(entry.path) or links.leads_inside(entry.path) else "link"
    if is_image(name):
        return "special" if _is_special(entry) else "image"
    return "hidden" if name.startswith(".") else os.path.splitext(name)[1].lower()  # noqa: PTH122 (hot loop)


def _is_class(entry: os.DirEntry[str]) -> bool:
    return _is_dir(entry) and not (entry.is_symlink() and _is_above(entry.path))


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def _is_above(link: str) -> bool:
    """Whether the link leads to a folder it lies in."""
    return _is_in(os.path.realpath(Path(link).parent), os.path.realpath(link))


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link in a circle
        return False


def _is_special(entry: os.DirEntry[str]) -> bool:
    """A pipe, a socket or a device, itself or by a link: reading would wait for it, or never end. A link that is broken
    or leads to itself is kept, so that reading reports it."""
    try:
        entry.stat()
    except OSError:
        return not entry.is_symlink()
    return True


def _real(entry: os.DirEntry[str]) -> Real:
    """Of what a link leads to."""
    stat = entry.stat()
    return stat.st_dev, stat.st_ino
