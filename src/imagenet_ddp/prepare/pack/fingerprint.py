"""Identify the images of a source by names, classes and sizes, so that a pack of other images is never mistaken for a
pack of these; and notice images that change while a pack is unfinished."""

import hashlib
import itertools
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from imagenet_ddp.data.sources.base import Images, Source
from imagenet_ddp.data.sources.folder.disk_threads import map_concurrently
from imagenet_ddp.data.sources.folder.images import FileImages
from imagenet_ddp.data.sources.names import Names
from imagenet_ddp.data.sources.packed.local import PackedImages

_CHUNK = 1_000  # files that a thread checks, one after the other
_MISSING = (-1, 0, 0)


def image_names(images: Images, data: Mapping[str, Any]) -> Names:
    """Return names relative to the source's folder, whose path must not affect the bytes."""
    if isinstance(images, PackedImages):
        return images.names
    prefix = f"{images.location or data['root']}{os.sep}"
    return Names.of(images.path(index).removeprefix(prefix) for index in range(len(images)))


def file_states(images: Images) -> np.ndarray:
    """Return int64 (N, 3): each file's bytes (-1 if it is missing), mtime and ctime in ns. ctime reveals a new image of
    the same size even if a copy restored mtime. For images packed before, return their checksums; for images that are
    not files, 0. 10,000 files on a local disk take 0.1 s."""
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

    chunks = [range(first, min(first + _CHUNK, len(images))) for first in range(0, len(images), _CHUNK)]
    found = map_concurrently(lambda chunk: [state(index) for index in chunk], chunks)
    return np.array(list(itertools.chain.from_iterable(found)), dtype=np.int64).reshape(-1, 3)


def fingerprint(source: Source, splits: Mapping[str, Images], names: Mapping[str, Names]) -> str:
    """Return the SHA-256 of classes, names, targets and weights."""
    sha = hashlib.sha256(json.dumps([source.classes, source.labels]).encode())
    for name, images in splits.items():
        sha.update(f"{name} {len(images)}".encode())
        for array in (names[name].text, names[name].ends, images.targets.astype("<i8")):
            sha.update(array.tobytes())
        if images.weights is not None:
            sha.update(images.weights.astype("<f4").tobytes())
    return sha.hexdigest()


def with_sizes(fingerprint: str, states: Mapping[str, np.ndarray]) -> str:
    """Add the sizes of the files, but not their times, which a pack does not store."""
    sha = hashlib.sha256(fingerprint.encode())
    for array in states.values():
        sha.update(array[:, 0].astype("<i8").tobytes())
    return sha.hexdigest()
