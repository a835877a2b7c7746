"""Identify the images of a source by names, classes and sizes, so that a pack of other images is never mistaken for a
pack of these. Also detect images that change while a pack is unfinished."""

import hashlib
import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from imagenet_ddp.data.sources.base import Images, Names, Source
from imagenet_ddp.data.sources.files import FileImages
from imagenet_ddp.data.sources.listing import map_concurrently
from imagenet_ddp.data.sources.packed import PackedImages
from imagenet_ddp.errors import RunError
from imagenet_ddp.system.text import count_noun

_CHUNK = 1_000  # files that a thread checks, one after the other


@dataclass(frozen=True)
class SourceSplit:
    """One split of a source. names: relative to the source's folder, whose path must not affect the packed bytes.
    states: see file_states."""

    images: Images
    names: Names
    states: np.ndarray


def source_splits(source: Source, data: Mapping[str, Any]) -> dict[str, SourceSplit]:
    """Return the splits that the source has: train, val or both. data: the resolved data.* keys."""
    splits = {"train": source.train, "val": source.val}
    return {
        name: SourceSplit(images, _names(images, data), file_states(images))
        for name, images in splits.items()
        if images is not None
    }


def _names(images: Images, data: Mapping[str, Any]) -> Names:
    if isinstance(images, PackedImages):
        return images.names
    prefix = f"{images.location or data['root']}{os.sep}"
    return Names.of(images.path(index).removeprefix(prefix) for index in range(len(images)))


def file_states(images: Images) -> np.ndarray:
    """Return int64 (N, 3): each file's size in bytes (-1 if it is missing), mtime and ctime in ns. ctime reveals a new
    image of the same size even if the copy preserved mtime. For packed images, return their checksums; for other images
    that are not files, zeros. Reading the states of 10,000 files on a local disk takes 0.1 s."""
    if isinstance(images, PackedImages):
        return np.array([(images.record(index).crc32, 0, 0) for index in range(len(images))], dtype=np.int64)
    if not isinstance(images, FileImages):
        return np.zeros((len(images), 3), dtype=np.int64)

    def state(index: int) -> tuple[int, int, int]:
        try:
            stat = os.stat(images.path(index))  # noqa: PTH116 (hot loop)
        except OSError:
            return -1, 0, 0
        return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns

    chunks = [range(first, min(first + _CHUNK, len(images))) for first in range(0, len(images), _CHUNK)]
    found = map_concurrently(lambda chunk: [state(index) for index in chunk], chunks)
    return np.array(list(itertools.chain.from_iterable(found)), dtype=np.int64).reshape(-1, 3)


def validate_unchanged(splits: Mapping[str, SourceSplit]) -> None:
    """Raise RunError if a file changed after its state was read, because the pack would mix old and new images."""
    changed: list[str] = []
    for name, split in splits.items():
        old, new = split.states[:, :2], file_states(split.images)[:, :2]
        differ = (old != new).any(axis=1) & (old[:, 0] >= 0) & (new[:, 0] >= 0)
        changed += [f"{name}/{split.names[index]}" for index in np.flatnonzero(differ).tolist()]
    if changed:
        raise RunError(
            f"{count_noun(len(changed), 'image')} changed during packing; the first was {changed[0]}. Hint: run the "
            "same command again, which rebuilds only the shards with changed images."
        )


def fingerprint(source: Source, splits: Mapping[str, SourceSplit]) -> str:
    """Return the SHA-256 of classes, names, targets and weights."""
    sha = hashlib.sha256(json.dumps([source.classes, source.labels]).encode())
    for name, split in splits.items():
        images = split.images
        sha.update(f"{name} {len(images)}".encode())
        for array in (split.names.text, split.names.ends, images.targets.astype("<i8")):
            sha.update(array.tobytes())
        if images.weights is not None:
            sha.update(images.weights.astype("<f4").tobytes())
    return sha.hexdigest()


def with_sizes(fingerprint: str, splits: Mapping[str, SourceSplit]) -> str:
    """Return the SHA-256 of a fingerprint and the sizes of the files. Their times are not stored in a pack."""
    sha = hashlib.sha256(fingerprint.encode())
    for split in splits.values():
        sha.update(split.states[:, 0].astype("<i8").tobytes())
    return sha.hexdigest()
