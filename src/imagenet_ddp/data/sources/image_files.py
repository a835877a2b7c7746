"""List the images of class folders (walk.py), and read them by position."""

import hashlib
import os
import stat
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from imagenet_ddp.data.decoding.decode import DEFAULT, Picture, Reading, open_picture
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.sources.base import Images, Names, one_form
from imagenet_ddp.data.sources.walk import ClassFolders, list_folder, look_in, map_concurrently
from imagenet_ddp.system.console import print_message

MAX_FILE_BYTES = 2**30  # twice the decoded size of the largest image that is accepted (pillow.MAX_PIXELS)
SAY_EVERY_S = 10.0


def read_file(path: str) -> bytes:
    """Read a whole image file. Raises UnreadableImage if it is not a regular file or larger than MAX_FILE_BYTES, and
    OSError if it cannot be read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a FIFO would otherwise wait for a writer
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableImage(path, "it is not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise UnreadableImage(path, f"the file is too large ({status.st_size / 2**30:,.1f} GiB)")
        return open(descriptor, "rb", buffering=0, closefd=False).read()
    finally:
        os.close(descriptor)


class FileImages(Images):
    """Image files below one folder. names: paths relative to the folder. rows: int64 (N,), the positions in `names` of
    the images in this split; None: all names."""

    is_encoded = True

    def __init__(
        self,
        folder: Path,
        names: Names,
        targets: np.ndarray,
        reading: Reading = DEFAULT,
        rows: np.ndarray | None = None,
    ):
        self.folder, self.location, self.reading = folder, str(folder), reading
        self.names, self.targets, self._rows = names, targets, rows
        self.left_out: Counter[str] = Counter()  # number of files by reason
        self.loose: Sequence[str] = ()  # names of images outside the class folders, as in ClassFolders
        # uint64 (N,), by which an image is recognised under another name; set for splits that split_validation makes
        self.keys: np.ndarray | None = None
        # int64 (N,), equal for images that belong together, of both splits, as number_groups sets it; None: no groups
        self.groups: np.ndarray | None = None

    def name(self, index: int) -> str:
        """Return the path relative to the folder, or absolute."""
        return self.names[index if self._rows is None else int(self._rows[index])]

    def path(self, index: int) -> str:
        return str(self.folder / self.name(index))

    def encoded(self, index: int) -> bytes:
        return read_file(self.path(index))

    def open(self, index: int) -> Picture:
        path = self.path(index)
        return open_picture(read_file(path), path, self.reading)

    def loose_images(self) -> "FileImages":
        """Return the images of `loose`, which have no class."""
        return FileImages(self.folder, Names.of(self.loose), np.zeros(len(self.loose), np.int64), self.reading)

    def together(self, other: "FileImages") -> "FileImages":
        """Return the images of two splits of one list, in the order of the list."""
        assert self._rows is not None and other._rows is not None and self.names is other.names
        rows = np.concatenate([self._rows, other._rows])
        order = np.argsort(rows)
        targets = np.concatenate([self.targets, other.targets])[order]
        images = FileImages(self.folder, self.names, targets, self.reading, rows[order])
        if self.keys is not None and other.keys is not None:
            images.keys = np.concatenate([self.keys, other.keys])[order]
        if self.groups is not None and other.groups is not None:
            images.groups = np.concatenate([self.groups, other.groups])[order]
        return images

    def subset(self, indices: np.ndarray) -> "FileImages":
        rows = np.asarray(indices, dtype=np.int64) if self._rows is None else self._rows[indices]
        images = FileImages(self.folder, self.names, self.targets[indices], self.reading, rows)
        images.weights = None if self.weights is None else self.weights[indices]
        images.keys = None if self.keys is None else self.keys[indices]
        images.groups = None if self.groups is None else self.groups[indices]
        return images


def digest(*splits: FileImages | None) -> str:
    """Return eight hexadecimal digits that depend on the name, position and weight of every image."""
    found = hashlib.sha256()
    for images in splits:
        if images is None:
            continue
        for array in (images.names.text, images.names.ends, images.targets):
            found.update(array.data)
        if images.weights is not None:
            found.update(images.weights.data)
    return found.hexdigest()[:8]


def list_images(
    folder: Path,
    classes: list[str],
    reading: Reading = DEFAULT,
    inside: ClassFolders | None = None,
    *,
    whole: bool = True,
) -> FileImages:
    """List the images below folder/<class> for each class, at any depth, sorted within each class.

    A class without a folder has no images; folders whose names differ only in Unicode form are one class. Prints a line
    of progress every SAY_EVERY_S seconds. inside: look_in(folder), if it is known. whole: as in list_folder.
    """
    paths: list[str] = []
    counts: list[int] = []
    last_s = time.monotonic()
    stored: dict[str, list[str]] = {}
    if inside is None:
        inside = look_in(folder) if folder.is_dir() else ClassFolders([], Counter(), [])
    left_out = inside.beside.copy()
    for name in inside.names:
        stored.setdefault(one_form(name), []).append(name)

    def list_class(names: list[str]) -> list[tuple[str, list[str], Counter[str]]]:
        return [(name, *list_folder(folder / name, whole=whole)) for name in names]

    for found in map_concurrently(list_class, [stored.get(one_form(name), []) for name in classes]):
        paths += [f"{name}/{image}" for name, images, _ in found for image in images]
        counts.append(sum(len(images) for _, images, _ in found))
        for _, _, more in found:
            left_out += more
        if (now := time.monotonic()) - last_s >= SAY_EVERY_S:
            last_s = now
            print_message(
                f"Listing {folder}: {len(paths):,} images in {len(counts):,} of {len(classes):,} classes so far."
            )
    targets = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
    images = FileImages(folder, Names.of(paths), targets, reading)
    images.left_out, images.loose = left_out, inside.loose
    return images
