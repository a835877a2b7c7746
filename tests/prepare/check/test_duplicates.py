"""Duplicates by their bytes."""

import numpy as np

from imagenet_ddp.prepare.check.duplicates import same_between, same_within


def test_pairs_within_and_between():
    train = np.array([5, 7, 0, 5, 9, 0, 5], dtype=np.uint64)  # 0: could not be read, and is like nothing
    val = np.array([9, 0, 4, 5, 2**64 - 1], dtype=np.uint64)
    assert same_within(train) == [(0, 3), (0, 6)]
    assert same_within(val) == []
    assert same_between(train, val) == [(0, 3), (4, 0)]


def test_empty_splits():
    none = np.zeros(0, dtype=np.uint64)
    assert same_within(none) == [] and same_between(none, none) == []
