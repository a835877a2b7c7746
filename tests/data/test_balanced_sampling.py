from collections import Counter

import numpy as np
import pytest

from imagenet_ddp.data.sampler import balanced_order, count_earlier

SIZES = [(1,), (5,), (3, 3), (1, 40), (1, 3, 20, 40, 7), (2, 0, 9), (300, 1, 1, 280), tuple(range(1, 30))]


def targets_of(sizes: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes)).astype(np.int64)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", [0, 7])
def test_each_class_is_as_frequent_as_any_other(sizes: tuple[int, ...], seed: int):
    targets, present = targets_of(sizes), sum(size > 0 for size in sizes)
    total: Counter[int] = Counter()
    for epoch in range(2 * present + 1):
        order = balanced_order(targets, seed, epoch)
        assert order.dtype == np.int64 and len(order) == len(targets)
        counts = Counter(targets[order].tolist())
        assert counts.keys() == set(targets.tolist())
        assert {count - len(targets) // present for count in counts.values()} <= {0, 1}
        total += counts
        assert max(total.values()) - min(total.values()) <= 1  # over the epochs too


@pytest.mark.parametrize("sizes", SIZES)
def test_no_image_comes_again_before_each_other_of_its_class(sizes: tuple[int, ...]):
    """Over the ends of epochs too: all images of a class are drawn equally often, or once more, at any time."""
    targets = targets_of(sizes)
    drawn = np.zeros(len(targets), int)
    for epoch in range(7):
        for image in balanced_order(targets, 1, epoch).tolist():
            of_class = drawn[targets == targets[image]]
            assert drawn[image] == of_class.min()
            drawn[image] += 1


def test_shuffles_of_a_class_are_independent():
    """Of 5 images all 120 orders come up, and neighbours in the epoch are of any two classes."""
    targets = targets_of((5, 500))
    order = balanced_order(targets, 0, 0)
    rare = [image for image in order.tolist() if targets[image] == 0]
    shuffles = {tuple(rare[place : place + 5]) for place in range(0, 250, 5)}
    assert len(rare) in (252, 253) and all(len(set(each)) == 5 for each in shuffles)
    assert len(shuffles) > 30
    pairs = Counter(zip(targets[order].tolist(), targets[order].tolist()[1:], strict=False))
    assert min(pairs.values()) > 80 and len(pairs) == 4


def test_count_earlier():
    assert count_earlier(np.array([3, 1, 3, 3, 0, 1])).tolist() == [0, 0, 1, 2, 0, 1]
    assert count_earlier(np.array([5])).tolist() == [0]
