"""Identify the images of a source by names, classes and sizes, so that a pack of others is never taken for a pack of
these; and, while a pack is unfinished, notice images that change."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from imagenet_ddp.data.sources.base import Images, Source
from imagenet_ddp.data.sources.folder.disk_threads import map_concurrently
from imagenet_ddp.data.sources.folder.images import FileImages
from imagenet_ddp.data.sources.packed.local import PackedImages

_CHUNK = 10_000  # files looked at together, each a future of a thread
_MISSING = (-1, 0, 0)


@dataclass(frozen=True)
class Names:
    """text: uint8, all names one after the other; ends: int64 (N,)."""

    text: np.ndarray
    ends: np.ndarray

    def __getitem__(self, index: int) -> str:
        begin = int(self.ends[index - 1]) if index else 0
        return os.fsdecode(self.text[begin : int(self.ends[index])].tobytes())


def image_names(images: Images, data: Mapping[str, Any]) -> Names:
    """Return names relative to the source's folder, which must not affect the bytes."""
    if isinstance(images, PackedImages):
        found = [images.name_of(index) for index in range(len(images))]
    else:
        prefix = f"{images.location or data['root']}{os.sep}"
        found = [os.fsencode(images.path(index).removeprefix(prefix)) for index in range(len(images))]
    return Names(np.frombuffer(b"".join(found), np.uint8), np.cumsum([len(text) for text in found], dtype=np.int64))


def file_states(images: Images) -> np.ndarray:
    """Return int64 (N, 3): each file's bytes (-1 where it is missing), mtime and ctime in ns. ctime differs for a new
    image of the same size even where a copy restored mtime. Of images packed before, their checksums; of images that
    are no files, 0. 10,000 files of a local disk take 0.1 s."""
    if isinstance(images, PackedImages):
        return np.array([(images.record(index).crc32, 0, 0) for index in range(len(images))], dtype=np.int64)
    if not isinstance(images, FileImages):
        return np.zeros((len(images), 3), dtype=np.int64)

    def state(index: int) -> tuple[int, int, int]:
        try:
            stat = os.stat(images.path(index))  # noqa: PTH116 (hot loop)
        except OSError:
            return _MISSING
        return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns

    found: list[tuple[int, int, int]] = []
    for first in range(0, len(images), _CHUNK):
        found += map_concurrently(state, range(first, min(first + _CHUNK, len(images))))
    return np.array(found, dtype=np.int64)


def fingerprint(source: Source, splits: Mapping[str, Images], names: Mapping[str, Names]) -> str:
    """Return the SHA-256 of classes, names and targets."""
    sha = hashlib.sha256(json.dumps([source.classes, source.labels]).encode())
    for name, images in splits.items():
        sha.update(f"{name} {len(images)}".encode())
        for array in (names[name].text, names[name].ends, images.targets.astype("<i8")):
            sha.update(array.tobytes())
    return sha.hexdigest()


def with_sizes(fingerprint: str, states: Mapping[str, np.ndarray]) -> str:
    """Add the sizes of the files; not the times, which are no part of a pack."""
    sha = hashlib.sha256(fingerprint.encode())
    for array in states.values():
        sha.update(array[:, 0].astype("<i8").tobytes())
    return sha.hexdigest()
