"""Find images with the same bytes. No torch."""

import numpy as np


def same_within(values: np.ndarray) -> list[tuple[int, int]]:
    """Pair each image that equals an earlier one with the first such image. values: uint64 (N,), 0: not known."""
    first: dict[int, int] = {}
    pairs = [(first.setdefault(value, index), index) for index, value in enumerate(values.tolist()) if value]
    return [(a, b) for a, b in pairs if a != b]


def same_between(train: np.ndarray, val: np.ndarray) -> list[tuple[int, int]]:
    """Pair each validation image with the first training image that has the same value."""
    first: dict[int, int] = {}
    for index, value in enumerate(train.tolist()):
        first.setdefault(value, index)
    return sorted((first[value], index) for index, value in enumerate(val.tolist()) if value and value in first)
