"""Read image files below class folders, by position."""

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.data.decoding.image import DEFAULT, Picture, Reading, UnreadableImage, open_picture
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.folder.shared_arrays import SharedArrays
from imagenet_ddp.data.sources.folder.walk import list_images
from imagenet_ddp.system.console import print_message

MAX_FILE_BYTES = 2**30  # twice what the largest image that is read has in pixels (decode.MAX_PIXELS)


def read_file(path: str) -> bytes:
    """Read a whole image file. Raises UnreadableImage where it is far too large, and OSError."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (hot loop)
        if (size := os.fstat(file.fileno()).st_size) > MAX_FILE_BYTES:
            raise UnreadableImage(path, f"the file has {size / 2**30:,.1f} GiB")
        return file.read()


class FileImages(Images):
    """Image files below one folder. Paths are one byte string and offsets: a Python list of a million strings
    would be copied into every forked worker, page by page, as its reference counts change.

    arrays: text, ends and targets, as in a Listing. chosen: rows (int64, positions in arrays) and their targets; None:
    all.
    """

    is_encoded = True

    def __init__(
        self, folder: Path, arrays: SharedArrays, reading: Reading = DEFAULT, chosen: SharedArrays | None = None
    ):
        self.folder, self.location, self.reading = folder, str(folder), reading
        self._arrays, self._chosen = arrays, chosen
        self.targets = self._shared_targets
        self.left_out: Counter[str] = Counter()  # of the Listing

    @classmethod
    def of(
        cls, folder: Path, relative_paths: list[str], targets: np.ndarray, reading: Reading = DEFAULT
    ) -> "FileImages":
        encoded = [os.fsencode(path) for path in relative_paths]
        text = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)
        return cls(folder, SharedArrays({"text": text, "ends": ends, "targets": targets}), reading)

    @property
    def _shared_targets(self) -> np.ndarray:
        return (self._chosen or self._arrays)["targets"]

    def __getstate__(self) -> dict[str, Any]:
        is_own = self.targets is not self._shared_targets
        return {**self.__dict__, "targets": self.targets if is_own else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.targets is None:
            self.targets = self._shared_targets

    def __len__(self) -> int:
        return len(self.targets)

    def path(self, index: int) -> str:
        row = int(self._chosen["rows"][index]) if self._chosen else index
        ends = self._arrays["ends"]
        begin = ends[row - 1] if row else 0
        return str(self.folder / os.fsdecode(self._arrays["text"][begin : ends[row]].tobytes()))

    def encoded(self, index: int) -> bytes:
        return read_file(self.path(index))

    def open(self, index: int) -> Picture:
        return open_picture(self.encoded(index), self.path(index), self.reading)

    def subset(self, indices: np.ndarray) -> "FileImages":
        rows = self._chosen["rows"][indices] if self._chosen else np.asarray(indices, dtype=np.int64)
        chosen = SharedArrays({"rows": rows, "targets": self.targets[indices]})
        return FileImages(self.folder, self._arrays, self.reading, chosen)


def walk(folder: Path, classes: list[str], reading: Reading = DEFAULT) -> FileImages:
    """All images below folder/<class>, to any depth, in a stable order; classes without a folder have none."""
    listing = list_images(folder, classes, print_message)
    images = FileImages(folder, listing.arrays, reading)
    images.left_out = listing.left_out
    return images


def digest(splits: Sequence[FileImages]) -> str:
    """Return eight hexadecimal digits that depend on the name and position of every image."""
    found = hashlib.sha256()
    for images in splits:
        for _, array in images._arrays.items():
            found.update(array.data)
    return found.hexdigest()[:8]


def split_validation(images: FileImages, fraction: float, seed: int) -> tuple[FileImages, FileImages]:
    """(train, val): of each class the same share, at least one image in each where the class has two."""
    generator = np.random.default_rng(seed)
    val = np.zeros(len(images), dtype=bool)
    for target in np.unique(images.targets):
        members = np.flatnonzero(images.targets == target)
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        val[generator.permutation(members)[:count]] = True
    return images.subset(np.flatnonzero(~val)), images.subset(np.flatnonzero(val))
