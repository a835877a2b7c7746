"""Order an epoch so that each class is equally frequent (data.sampling=balanced).

An epoch of n images of C classes has each class n/C times, rounded up or down; the classes rounded up change from epoch
to epoch in turn. The images of a class are drawn from one sequence for the whole training: shuffles of all its images,
one after the other. So no image appears again before every other image of its class has appeared, and after enough
epochs all images of a class were drawn equally often. The order of an epoch is a function of classes, seed and epoch
only; earlier epochs need not be computed.
"""

import numpy as np

from imagenet_ddp.system.seeding import hash_seed

_LEAST = 256  # images drawn by one generator, which takes as long to make: of a small class several shuffles


def balanced_order(targets: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Return positions of images, int64 (N,), as many as there are images. targets: int64 (N,), their classes; a class
    without images is ignored."""
    by_class = np.argsort(targets, kind="stable")
    classes, begins = np.unique(targets[by_class], return_index=True)
    each, left = divmod(len(targets), len(classes))
    # of `left` classes there is one image more; they take turns, and class k is the turn[k]-th
    turn = _generator(seed, 1).permutation(len(classes))
    first, last = (number * each + _times_in_turn(turn, number * left) for number in (epoch, epoch + 1))
    drawn = [
        _draw(members, int(begin), int(end), (seed, 2, int(target)))
        for target, members, begin, end in zip(classes, np.split(by_class, begins[1:]), first, last, strict=True)
    ]
    # the positions of the classes are drawn for the epoch; each class fills its positions from its sequence
    generator = _generator(seed, 3, epoch)
    places = np.argsort(generator.permutation(np.repeat(np.arange(len(classes)), last - first)), kind="stable")
    order = np.empty(len(targets), np.int64)
    order[places] = np.concatenate(drawn)
    return order


def count_earlier(order: np.ndarray) -> np.ndarray:
    """Return int64 (N,): how often the image at each position occurred before it."""
    places = np.argsort(order, kind="stable")
    begins = np.flatnonzero(np.diff(order[places], prepend=-1))
    result = np.empty(len(order), np.int64)
    result[places] = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    return result


def _times_in_turn(turn: np.ndarray, number: int) -> np.ndarray:
    """Return how often each class occurs among the first `number` terms of 0, 1, ..., C - 1, 0, 1, ..."""
    return (number - turn + len(turn) - 1) // len(turn)


def _draw(members: np.ndarray, begin: int, end: int, seed: tuple[int, ...]) -> np.ndarray:
    """Return members[begin:end] of the endless sequence of shuffles of the members."""
    size = len(members)
    shuffles = -(-_LEAST // size)  # by one generator
    parts = [
        _generator(*seed, block).permuted(np.tile(members, (shuffles, 1)), axis=1).ravel()
        for block in range(begin // (shuffles * size), -(-end // (shuffles * size)))
    ]
    skipped = begin // (shuffles * size) * shuffles * size
    return np.concatenate(parts)[begin - skipped : end - skipped] if parts else members[:0]


def _generator(*numbers: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(hash_seed(*numbers)))
