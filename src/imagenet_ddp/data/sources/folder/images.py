"""Read image files below a folder, by position."""

import hashlib
import itertools
import os
import stat
from collections import Counter
from pathlib import Path

import numpy as np

from imagenet_ddp.data.decoding.image import DEFAULT, Picture, Reading, UnreadableImage, open_picture
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


def _hashes(names: Names, seed: int) -> np.ndarray:
    """Return a hash of each name that depends on the seed, uint64 (N,)."""
    text, ends, key = names.text.tobytes(), names.ends.tolist(), seed.to_bytes(16, "little", signed=True)
    parts = (text[begin:end] for begin, end in itertools.pairwise([0, *ends]))
    return np.frombuffer(b"".join(hashlib.blake2b(part, digest_size=8, key=key).digest() for part in parts), np.uint64)


def split_validation(images: FileImages, fraction: float, seed: int, fold: int = 0) -> tuple[FileImages, FileImages]:
    """Split the images into (train, val). val gets the same share of each class, and each split gets at least one image
    of every class that has two or more.

    fold: 0 to round(1 / fraction) - 1. Together, the folds hold out each image once. The folds after the first divide
    the images of each class that the first fold leaves, and may hold out no image of a small class.

    The choice depends on the names of the images, not on their order. Sorting or extending the list does not move
    training images into the validation set, except for the few by which the share grows.
    """
    ranks = _hashes(images.names, seed)
    val = np.zeros(len(images), dtype=bool)
    for target in np.unique(images.targets):
        members = np.flatnonzero(images.targets == target)
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        members = members[np.argsort(ranks[members], kind="stable")]
        if fold:
            others = round(1 / fraction) - 1
            # each class starts at a different image, so that the remainders do not all go to the same fold
            val[members[count:][(fold - 1 + target) % others :: others]] = True
        else:
            val[members[:count]] = True
    return images.subset(np.flatnonzero(~val)), images.subset(np.flatnonzero(val))
