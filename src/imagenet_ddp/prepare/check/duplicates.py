"""Find duplicate images: the same bytes, or pictures that look the same. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

MAX_DIFFERENT_BITS = 4  # of the 128 of two pictures that look the same
_NUM_BANDS = 4  # parts of 32 bits, one of which must be equal: finds all pairs that differ in 3 bits, most with 4
_MAX_PAIRS = 2_000_000  # compared at a time

ImageId = tuple[str, int]  # split, index in it


@dataclass
class Duplicates:
    """Pairs of images. similar_between: of validation images that are not in same_between."""

    same_between: list[tuple[ImageId, ImageId]] = field(default_factory=list)  # (train, val)
    similar_between: list[tuple[ImageId, ImageId]] = field(default_factory=list)
    same_within: dict[str, list[tuple[ImageId, ImageId]]] = field(default_factory=dict)  # split -> (first, another)


def find_duplicates(content: Mapping[str, np.ndarray], picture: Mapping[str, np.ndarray]) -> Duplicates:
    """content: split -> uint64 (N,), 0: not known. picture: split -> uint8 (N, 16), all 0: no contrast."""
    found = Duplicates(same_within={split: _same_within(split, values) for split, values in content.items()})
    if content.keys() >= {"train", "val"}:
        same = _same_between(content["train"], content["val"])
        found.same_between = [(("train", a), ("val", b)) for a, b in same]
        known = {b for _, b in same}
        similar = _similar_between(picture["train"], picture["val"])
        found.similar_between = [(("train", a), ("val", b)) for a, b in similar if b not in known]
    return found


def _same_within(split: str, values: np.ndarray) -> list[tuple[ImageId, ImageId]]:
    """Pair each image that equals an earlier one with the first of them."""
    order = np.argsort(values, kind="stable")
    order = order[values[order] != 0]
    ordered = values[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, int)
    first = order[np.repeat(begins, np.diff(np.r_[begins, len(ordered)]))]
    pairs = [((split, int(a)), (split, int(b))) for a, b in zip(first, order, strict=True) if a != b]
    return sorted(pairs)


def _same_between(train: np.ndarray, val: np.ndarray) -> list[tuple[int, int]]:
    """Pair each validation image with the first training image of the same value."""
    known, first = np.unique(train, return_index=True)
    positions = np.searchsorted(known, val)
    positions[positions == len(known)] = 0
    hits = np.flatnonzero((val != 0) & (known[positions] == val)) if len(known) else np.zeros(0, int)
    return sorted((int(first[positions[b]]), int(b)) for b in hits)


def _similar_between(train: np.ndarray, val: np.ndarray) -> list[tuple[int, int]]:
    """Pair each validation image with the nearest training image, if that is near."""
    if not len(train) or not len(val):
        return []
    nearest = np.full(len(val), MAX_DIFFERENT_BITS + 1)
    partner = np.zeros(len(val), dtype=np.int64)
    has_contrast = np.flatnonzero(val.any(axis=1))
    for band in range(_NUM_BANDS):
        train_band, val_band = (np.ascontiguousarray(bits).view(np.uint32)[:, band] for bits in (train, val))
        order = np.argsort(train_band, kind="stable")
        begin, end = (
            np.searchsorted(train_band[order], val_band[has_contrast], side=side) for side in ("left", "right")
        )
        counts = end - begin
        # in chunks: a set of ten thousand white images has a hundred million pairs
        for part in np.array_split(np.arange(len(has_contrast)), max(1, int(counts.sum()) // _MAX_PAIRS + 1)):
            at_val = np.repeat(has_contrast[part], counts[part])
            offsets = np.arange(len(at_val)) - np.repeat(np.cumsum(counts[part]) - counts[part], counts[part])
            at_train = order[np.repeat(begin[part], counts[part]) + offsets]
            differing = np.unpackbits(np.bitwise_xor(train[at_train], val[at_val]), axis=1).sum(axis=1, dtype=np.int64)
            rows = np.flatnonzero(differing <= MAX_DIFFERENT_BITS)
            rows = rows[np.lexsort((at_train[rows], differing[rows], at_val[rows]))]
            rows = rows[np.unique(at_val[rows], return_index=True)[1]]  # the nearest one of each
            rows = rows[differing[rows] < nearest[at_val[rows]]]
            nearest[at_val[rows]], partner[at_val[rows]] = differing[rows], at_train[rows]
    hits = np.flatnonzero(nearest <= MAX_DIFFERENT_BITS)
    return sorted((int(partner[b]), int(b)) for b in hits)
