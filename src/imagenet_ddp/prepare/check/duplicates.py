"""Which images are the same: by their bytes, or by what they show. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

MOST_DIFFERENT = 4  # bits of the 128 in which two pictures of the same may differ
_BANDS = 4  # parts of 32 bits, of which one must be the same: so all pairs that differ in 3 bits are found, most with 4
_MOST_PAIRS = 2_000_000  # compared at a time

Place = tuple[str, int]  # split, index in it


@dataclass
class Duplicates:
    """same: pairs with the same bytes. alike: pairs that show the same, of validation images that
    have no pair of the first kind."""

    same_between: list[tuple[Place, Place]] = field(default_factory=list)  # (train, val)
    alike_between: list[tuple[Place, Place]] = field(default_factory=list)
    same_within: dict[str, list[tuple[Place, Place]]] = field(default_factory=dict)  # split -> (first, another one)


def find(contents: Mapping[str, np.ndarray], pictures: Mapping[str, np.ndarray]) -> Duplicates:
    """contents: split -> uint64 (N,), 0: not known. pictures: split -> uint8 (N, 16), all 0: tells nothing."""
    found = Duplicates()
    for split, values in contents.items():
        found.same_within[split] = _within(split, values)
    if contents.keys() >= {"train", "val"}:
        same = _between(contents["train"], contents["val"])
        found.same_between = [(("train", a), ("val", b)) for a, b in same]
        known = {b for _, b in same}
        alike = _alike(pictures["train"], pictures["val"])
        found.alike_between = [(("train", a), ("val", b)) for a, b in alike if b not in known]
    return found


def _within(split: str, values: np.ndarray) -> list[tuple[Place, Place]]:
    """Each image that is the same as an earlier one, with the first of them."""
    order = np.argsort(values, kind="stable")
    order = order[values[order] != 0]
    ordered = values[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, int)
    first = order[np.repeat(begins, np.diff(np.r_[begins, len(ordered)]))]
    pairs = [((split, int(a)), (split, int(b))) for a, b in zip(first, order, strict=True) if a != b]
    return sorted(pairs)


def _between(train: np.ndarray, val: np.ndarray) -> list[tuple[int, int]]:
    """Each validation image with the first training image of the same value."""
    known, first = np.unique(train, return_index=True)
    places = np.searchsorted(known, val)
    places[places == len(known)] = 0
    hits = np.flatnonzero((val != 0) & (known[places] == val)) if len(known) else np.zeros(0, int)
    return sorted((int(first[places[b]]), int(b)) for b in hits)


def _alike(train: np.ndarray, val: np.ndarray) -> list[tuple[int, int]]:
    """Each validation image with the nearest training image, where it is near."""
    if not len(train) or not len(val):
        return []
    nearest = np.full(len(val), MOST_DIFFERENT + 1)
    partner = np.zeros(len(val), dtype=np.int64)
    told = np.flatnonzero(val.any(axis=1))
    for band in range(_BANDS):
        mine, theirs = (np.ascontiguousarray(bits).view(np.uint32)[:, band] for bits in (train, val))
        order = np.argsort(mine, kind="stable")
        begin, end = (np.searchsorted(mine[order], theirs[told], side=side) for side in ("left", "right"))
        counts = end - begin
        # in chunks: a set of ten thousand white images has a hundred million pairs
        for part in np.array_split(np.arange(len(told)), max(1, int(counts.sum()) // _MOST_PAIRS + 1)):
            at_val = np.repeat(told[part], counts[part])
            offsets = np.arange(len(at_val)) - np.repeat(np.cumsum(counts[part]) - counts[part], counts[part])
            at_train = order[np.repeat(begin[part], counts[part]) + offsets]
            differing = np.unpackbits(np.bitwise_xor(train[at_train], val[at_val]), axis=1).sum(axis=1, dtype=np.int64)
            rows = np.flatnonzero(differing <= MOST_DIFFERENT)
            rows = rows[np.lexsort((at_train[rows], differing[rows], at_val[rows]))]
            rows = rows[np.unique(at_val[rows], return_index=True)[1]]  # the nearest one of each
            rows = rows[differing[rows] < nearest[at_val[rows]]]
            nearest[at_val[rows]], partner[at_val[rows]] = differing[rows], at_train[rows]
    hits = np.flatnonzero(nearest <= MOST_DIFFERENT)
    return sorted((int(partner[b]), int(b)) for b in hits)
