"""Which images a source holds, so that a pack of others is never taken for a pack of these: names, classes, sizes."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.data.files import FileImages
from imagenet_ddp.data.folders import side_by_side
from imagenet_ddp.data.packed import PackedImages
from imagenet_ddp.data.sources import Images, Source

AT_A_TIME = 10_000  # files asked for their size, each a future of a thread


@dataclass(frozen=True)
class Names:
    """of: uint8, all names one after the other; ends: int64 (N,)."""

    of: np.ndarray
    ends: np.ndarray

    def __getitem__(self, index: int) -> str:
        return os.fsdecode(self.of[int(self.ends[index - 1]) if index else 0 : int(self.ends[index])].tobytes())


def names_of(images: Images, data: Mapping[str, Any]) -> Names:
    """Relative to where the source lies, which is no part of the bytes."""
    if isinstance(images, PackedImages):
        found = [images.name_of(index) for index in range(len(images))]
    else:
        prefix = f"{getattr(images, 'folder', data['root'])}{os.sep}"
        found = [os.fsencode(images.path(index).removeprefix(prefix)) for index in range(len(images))]
    return Names(np.frombuffer(b"".join(found), np.uint8), np.cumsum([len(text) for text in found], dtype=np.int64))


def sizes_of(images: Images) -> np.ndarray:
    """int64 (N,): bytes of each file, -1 where it cannot be asked; 0 where images are no files. 10,000 files of a local
    disk take 0.1 s. Of images that were packed before, their checksums."""
    if isinstance(images, PackedImages):
        return np.array([images.record(index).crc32 for index in range(len(images))], dtype=np.int64)
    if not isinstance(images, FileImages):
        return np.zeros(len(images), dtype=np.int64)

    def size(index: int) -> int:
        try:
            return Path(images.path(index)).stat().st_size
        except OSError:
            return -1

    found: list[int] = []
    for first in range(0, len(images), AT_A_TIME):
        found += side_by_side(size, range(first, min(first + AT_A_TIME, len(images))))
    return np.array(found, dtype=np.int64)


def fingerprint(source: Source, splits: Mapping[str, Images], names: Mapping[str, Names]) -> str:
    """Of classes, names and targets."""
    sha = hashlib.sha256(json.dumps([source.classes, source.labels]).encode())
    for name, images in splits.items():
        sha.update(f"{name} {len(images)}".encode())
        for array in (names[name].of, names[name].ends, images.targets.astype("<i8")):
            sha.update(array.tobytes())
    return sha.hexdigest()


def with_sizes(fingerprint: str, sizes: Mapping[str, np.ndarray]) -> str:
    sha = hashlib.sha256(fingerprint.encode())
    for array in sizes.values():
        sha.update(array.astype("<i8").tobytes())
    return sha.hexdigest()
