"""Read image files below a folder, by position."""

import hashlib
import os
import stat
from collections import Counter
from pathlib import Path

import numpy as np

from imagenet_ddp.data.decode import DEFAULT, Picture, Reading, UnreadableImage, open_picture
from imagenet_ddp.data.sources.base import Images, Names

MAX_FILE_BYTES = 2**30  # twice the decoded size of the largest image that is accepted (decoding.pillow.MAX_PIXELS)


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
