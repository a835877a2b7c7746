"""Split a share of the images off for validation, with copies of an image, and images of one group, on one side."""

import hashlib
import itertools
import os
import stat
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.sources.base import Names, positions_of_each
from imagenet_ddp.data.sources.groups import first_of_each, pairs_of
from imagenet_ddp.data.sources.image_files import SAY_EVERY_S, FileImages, digest, read_file
from imagenet_ddp.data.sources.walk import map_concurrently
from imagenet_ddp.system.console import print_message

R = TypeVar("R")

UNREADABLE = -1
NO_KEY = 0
COPIES = "Looking for copies"
_CHUNK = 256  # number of files that a thread reads one after the other
_PART_BYTES = 1 << 11  # read of the middle and of the end of a file; the beginning is often the same header


def split_validation(
    images: FileImages, fraction: float, seed: int, fold: int = 0
) -> tuple[FileImages, FileImages, str]:
    """Split the images into (train, val), and return them with a digest of the images and of their copies. val gets the
    same share of each class, and each split gets at least one image of every class that has two different ones.

    fold: 0 to round(1 / fraction) - 1. Together, the folds hold out each image once. The folds after the first divide
    the images of each class that the first fold leaves, and may hold out no image of a small class.

    The choice depends on the names of the images, not on their order. Sorting or extending the list does not move
    training images into the validation set, except for the few by which the share grows. Images with the same bytes
    and images of one group are always in the same fold, whatever their classes, so the folds may differ in size by
    their number.
    """
    images.keys = content_keys(images.location, images.names)
    first = find_copies(images.location, images.names, images.keys)
    if images.groups is not None:
        first = first_of_each(len(images), np.concatenate([pairs_of(first), pairs_of(images.groups)]))
    is_copied = np.zeros(len(images), dtype=bool)
    is_copied[first[first != np.arange(len(images))]] = True
    is_copied = is_copied[first]  # the earliest copy, too
    # of several labels, each combination counts as a class
    groups = images.targets
    if groups.ndim == 2:
        groups = np.unique(groups, axis=0, return_inverse=True)[1].reshape(-1)
    val = _folds(groups, _hashes(images.names, seed), first, is_copied, fraction) == fold
    digits = digest(images)
    if is_copied.any():
        digits = hashlib.sha256(digits.encode() + first.tobytes()).hexdigest()[:8]
    train = images.subset(np.flatnonzero(~val))
    train.left_out, train.loose = images.left_out, images.loose
    return train, images.subset(np.flatnonzero(val)), digits


def _folds(
    targets: np.ndarray, ranks: np.ndarray, first: np.ndarray, is_copied: np.ndarray, fraction: float
) -> np.ndarray:
    """Return the number of the fold that holds out each image, int64 (N,). ranks: order in which images are taken.
    first, is_copied: position of the first copy of each image, and whether it has others."""
    folds = np.full(len(targets), -1, dtype=np.int64)
    others = max(round(1 / fraction) - 1, 1)
    for target, of_class in enumerate(positions_of_each(targets)):
        if not len(of_class):
            continue
        members = of_class
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        members = members[np.argsort(ranks[members], kind="stable")]
        if is_copied[members].any():
            # of the copies in one class, the first in the order counts; those of an earlier class are placed already
            folds[members] = folds[first[members]]
            count -= int((folds[members] == 0).sum())
            members = members[folds[members] < 0]
            _, positions, sizes = np.unique(first[members], return_index=True, return_counts=True)
            order = np.argsort(positions)
            members, sizes = members[positions[order]], sizes[order]
            is_held_out = _fill(sizes, count)
            members, count = np.concatenate([members[is_held_out], members[~is_held_out]]), int(is_held_out.sum())
        folds[members[:count]] = 0
        # each class starts at a different image, so that the remainders do not all go to the same fold
        folds[members[count:]] = 1 + (np.arange(len(members) - count) - target) % others
        if is_copied[members].any():
            folds[first[members]] = folds[members]
            folds[of_class] = folds[first[of_class]]
    return folds


def _fill(sizes: np.ndarray, count: int) -> np.ndarray:
    """Choose groups of these sizes, in order, whose sum is at most count, but at least one of two or more groups if
    count is positive. Returns bool (groups,)."""
    chosen, num_left = np.zeros(len(sizes), dtype=bool), len(sizes)
    for position, size in enumerate(sizes.tolist()):
        if size <= count and num_left > 1:
            chosen[position], count, num_left = True, count - size, num_left - 1
    if count > 0 and len(sizes) > 1 and not chosen.any():
        chosen[sizes.argmin()] = True
    return chosen


def _hashes(names: Names, seed: int) -> np.ndarray:
    """Return a hash of each name that depends on the seed, uint64 (N,)."""
    text, ends, key = names.text.tobytes(), names.ends.tolist(), seed.to_bytes(16, "little", signed=True)
    parts = (text[begin:end] for begin, end in itertools.pairwise([0, *ends]))
    return np.frombuffer(b"".join(hashlib.blake2b(part, digest_size=8, key=key).digest() for part in parts), np.uint64)


def content_keys(folder: str, names: Names) -> np.ndarray:
    """Return a hash of the size and of a part of the bytes of each file, uint64 (N,); NO_KEY for one that cannot be
    read. It does not depend on the name. names: paths relative to the folder, or absolute."""
    keys = map_files(_key, folder, names, range(len(names.ends)), COPIES)
    return np.frombuffer(b"".join(keys), np.uint64)


def find_copies(folder: str, names: Names, keys: np.ndarray) -> np.ndarray:
    """Return for each file the position of the first one with the same bytes, which is its own position if there is no
    other, int64 (N,). A file that cannot be read has no copies. keys: result of content_keys; only files of equal keys
    are read as a whole."""
    first = np.arange(len(keys), dtype=np.int64)
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    candidates = first[(counts[inverse] > 1) & (keys != NO_KEY)]
    earliest: dict[bytes, int] = {}
    for index, found in zip(
        candidates.tolist(), map_files(_digest, folder, names, candidates.tolist(), COPIES), strict=True
    ):
        if found is not None:
            first[index] = earliest.setdefault(found, index)
    return first


def map_files(read: Callable[[str], R], folder: str, names: Names, indices: Sequence[int], doing: str) -> list[R]:
    """Return read(path) of each file, with several threads, because a network disk answers slowly. Prints a line of
    progress every SAY_EVERY_S seconds, which begins with `doing`."""
    chunks = [indices[begin : begin + _CHUNK] for begin in range(0, len(indices), _CHUNK)]
    results, found, last_s = (
        map_concurrently(
            lambda chunk: [read(os.path.join(folder, names[index])) for index in chunk],  # noqa: PTH118 (hot loop)
            chunks,
        ),
        [],
        time.monotonic(),
    )
    for result in results:
        found += result
        if (now := time.monotonic()) - last_s >= SAY_EVERY_S:
            last_s = now
            print_message(f"{doing} in {folder}: {len(found):,} of {len(indices):,} files so far.")
    return found


def file_size(path: str) -> int:
    """Return the size of a file in bytes, or UNREADABLE if it is empty, missing or not a regular file."""
    try:
        status = os.stat(path)  # noqa: PTH116 (hot loop)
    except (OSError, ValueError):
        return UNREADABLE
    return status.st_size if stat.S_ISREG(status.st_mode) and status.st_size else UNREADABLE


def _key(path: str) -> bytes:
    """Return the content key of a file, 8 bytes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a FIFO would otherwise wait for a writer
    except (OSError, ValueError):
        return bytes(8)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not (size := status.st_size):
            return bytes(8)
        places = [size // 2, size - _PART_BYTES] if size > 2 * _PART_BYTES else [0, _PART_BYTES]
        parts = [os.pread(descriptor, _PART_BYTES, place) for place in places]
        return hashlib.blake2b(b"%d " % size + b"".join(parts), digest_size=8).digest()
    except OSError:
        return bytes(8)
    finally:
        os.close(descriptor)


def _digest(path: str) -> bytes | None:
    try:
        return hashlib.blake2b(read_file(path), digest_size=16).digest()
    except (OSError, UnreadableImage):
        return None
