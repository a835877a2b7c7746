"""List the image files below a folder, and read them by position."""

import hashlib
import os
import stat
import time
from collections import Counter
from pathlib import Path

import numpy as np

from imagenet_ddp.data.decode import DEFAULT, Picture, Reading, UnreadableImage, open_picture
from imagenet_ddp.data.sources.base import Images, Names, one_form
from imagenet_ddp.data.sources.listing import class_folders, files_beside, list_folder, map_concurrently
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.text import count_noun

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
        self.left_out: Counter[str] = Counter()  # number of files by reason: those of list_folder, and "beside"

    def path(self, index: int) -> str:
        return str(self.folder / self.names[index if self._rows is None else int(self._rows[index])])

    def encoded(self, index: int) -> bytes:
        return read_file(self.path(index))

    def open(self, index: int) -> Picture:
        return open_picture(self.encoded(index), self.path(index), self.reading)

    def subset(self, indices: np.ndarray) -> "FileImages":
        rows = np.asarray(indices, dtype=np.int64) if self._rows is None else self._rows[indices]
        images = FileImages(self.folder, self.names, self.targets[indices], self.reading, rows)
        images.weights = None if self.weights is None else self.weights[indices]
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


def describe_left_out(left_out: Counter[str]) -> str:
    """Return a description of FileImages.left_out, or "" if no file was left out."""
    kinds = left_out.copy()
    parts = [
        f"{number:,} {words}"
        for kind, words in (
            ("beside", "outside the class folders"),
            ("hidden", "hidden"),
            ("linked", "linking to folders"),
            ("special", "neither files nor folders"),
            ("of systems", "folders of thumbnails or deleted files"),
        )
        if (number := kinds.pop(kind, 0))
    ]
    if others := kinds.total():
        most_first = sorted(kinds, key=lambda kind: (-kinds[kind], not kind, kind))
        names = [kind or "none" for kind in most_first[:4]] + (["..."] if len(kinds) > 4 else [])
        parts.append(f"{others:,} without an image extension ({', '.join(names)})")
    total = left_out.total()
    were = "was" if total == 1 else "were"
    return f"{count_noun(total, 'file')} {were} left out: {', '.join(parts)}" if total else ""


def list_images(folder: Path, classes: list[str], reading: Reading = DEFAULT) -> FileImages:
    """List the images below folder/<class> for each class, at any depth, sorted within each class.

    A class without a folder has no images; folders whose names differ only in Unicode form are one class. Prints a line
    of progress every SAY_EVERY_S seconds. Raises PermissionError, and ConfigError for other disk errors.
    """
    paths: list[str] = []
    counts: list[int] = []
    last_s = time.monotonic()

    def list_class(names: list[str]) -> tuple[list[str], Counter[str]]:
        images, more = list[str](), Counter[str]()
        for name in names:
            found, others = list_folder(folder / name)
            images += [f"{name}/{image}" for image in found]
            more += others
        return images, more

    try:
        left_out = files_beside(folder) if folder.is_dir() else Counter[str]()
        stored: dict[str, list[str]] = {}
        for name in class_folders(folder) if folder.is_dir() else []:
            stored.setdefault(one_form(name), []).append(name)
        for images, more in map_concurrently(list_class, [stored.get(one_form(name), []) for name in classes]):
            paths += images
            counts.append(len(images))
            left_out += more
            if (now := time.monotonic()) - last_s >= SAY_EVERY_S:
                last_s = now
                print_message(
                    f"Listing {folder}: {len(paths):,} images in {len(counts):,} of {len(classes):,} classes so far."
                )
    except PermissionError:
        raise
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder} must be readable, but reading it failed: {error.strerror or error}. Hint: "
            "check that its disk is still mounted, or set data.root=FOLDER to another folder."
        ) from error
    targets = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
    images = FileImages(folder, Names.of(paths), targets, reading)
    images.left_out = left_out
    return images
