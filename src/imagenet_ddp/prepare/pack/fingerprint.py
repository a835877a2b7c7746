"""Which images a source holds, so that a pack of others is never taken for a pack of these: names, classes, sizes.
And, as long as a pack is unfinished, whether they are still what its shards were made from."""

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

AT_A_TIME = 10_000  # files asked for their state, each a future of a thread
NOWHERE = (-1, 0, 0)


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
        prefix = f"{images.location or data['root']}{os.sep}"
        found = [os.fsencode(images.path(index).removeprefix(prefix)) for index in range(len(images))]
    return Names(np.frombuffer(b"".join(found), np.uint8), np.cumsum([len(text) for text in found], dtype=np.int64))


def states_of(images: Images) -> np.ndarray:
    """int64 (N, 3): of each file its bytes (-1 where it cannot be asked), and the times of its content and of its
    change in ns, which tell an image from another of the same size, even where a copy has set the first one back. 0
    where images are no files; of images that were packed before, their checksums. 10,000 files of a local disk take
    0.1 s."""
    if isinstance(images, PackedImages):
        return np.array([(images.record(index).crc32, 0, 0) for index in range(len(images))], dtype=np.int64)
    if not isinstance(images, FileImages):
        return np.zeros((len(images), 3), dtype=np.int64)

    def state(index: int) -> tuple[int, int, int]:
        try:
            stat = os.stat(images.path(index))  # noqa: PTH116 (hot loop)
        except OSError:
            return NOWHERE
        return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns

    found: list[tuple[int, int, int]] = []
    for first in range(0, len(images), AT_A_TIME):
        found += map_concurrently(state, range(first, min(first + AT_A_TIME, len(images))))
    return np.array(found, dtype=np.int64)


def fingerprint(source: Source, splits: Mapping[str, Images], names: Mapping[str, Names]) -> str:
    """Of classes, names and targets."""
    sha = hashlib.sha256(json.dumps([source.classes, source.labels]).encode())
    for name, images in splits.items():
        sha.update(f"{name} {len(images)}".encode())
        for array in (names[name].of, names[name].ends, images.targets.astype("<i8")):
            sha.update(array.tobytes())
    return sha.hexdigest()


def with_sizes(fingerprint: str, states: Mapping[str, np.ndarray]) -> str:
    """Without the times, which are no part of a pack."""
    sha = hashlib.sha256(fingerprint.encode())
    for array in states.values():
        sha.update(array[:, 0].astype("<i8").tobytes())
    return sha.hexdigest()
