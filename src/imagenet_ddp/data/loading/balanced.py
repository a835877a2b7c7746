"""Order an epoch so that each class is equally frequent (data.sampling=balanced).

In an epoch of n images of C classes, each class has n/C images, rounded up or down. From epoch to epoch, the classes
take turns at being rounded up. The images of a class are drawn from one sequence for the whole training, which consists
of consecutive shuffles of all its images. Therefore no image is repeated before every other image of its class has been
drawn, and after enough epochs all images of a class have been drawn equally often. The order of an epoch is a function
of classes, seed and epoch only, so earlier epochs need not be computed.
"""

import numpy as np

from imagenet_ddp.system.seeding import hash_seed

# Each generator draws at least this number of images, for a small class several shuffles. Drawing so many takes as long
# as making the generator.
_LEAST = 256


def balanced_order(targets: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Return the order of an epoch: positions of images, int64 (N,). targets: int64 (N,), the classes of the images. A
    class without images is ignored."""
    by_class = np.argsort(targets, kind="stable")
    classes, begins = np.unique(targets[by_class], return_index=True)
    each, left = divmod(len(targets), len(classes))
    # `left` classes have one image more than the others; the classes take turns, and class k has turn number turn[k]
    turn = _generator(seed, 1).permutation(len(classes))
    first, last = (number * each + _times_in_turn(turn, number * left) for number in (epoch, epoch + 1))
    drawn = [
        _draw(members, int(begin), int(end), (seed, 2, int(target)))
        for target, members, begin, end in zip(classes, np.split(by_class, begins[1:]), first, last, strict=True)
    ]
    # for each epoch, positions are drawn for each class and filled with the next images of its sequence
    generator = _generator(seed, 3, epoch)
    places = np.argsort(generator.permutation(np.repeat(np.arange(len(classes)), last - first)), kind="stable")
    order = np.empty(len(targets), np.int64)
    order[places] = np.concatenate(drawn)
    return order


def count_earlier(order: np.ndarray) -> np.ndarray:
    """Return int64 (N,): for each position, how often its image occurs at earlier positions."""
    places = np.argsort(order, kind="stable")
    begins = np.flatnonzero(np.diff(order[places], prepend=-1))
    result = np.empty(len(order), np.int64)
    result[places] = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    return result


def _times_in_turn(turn: np.ndarray, number: int) -> np.ndarray:
    """Return how often each class occurs among the first `number` terms of 0, 1, ..., C - 1, 0, 1, ..."""
    return (number - turn + len(turn) - 1) // len(turn)


def _draw(members: np.ndarray, begin: int, end: int, seed: tuple[int, ...]) -> np.ndarray:
    """Return the elements from `begin` to `end` of the endless sequence of shuffles of `members`."""
    size = len(members)
    shuffles = -(-_LEAST // size)  # drawn by one generator
    parts = [
        _generator(*seed, block).permuted(np.tile(members, (shuffles, 1)), axis=1).ravel()
        for block in range(begin // (shuffles * size), -(-end // (shuffles * size)))
    ]
    skipped = begin // (shuffles * size) * shuffles * size
    return np.concatenate(parts)[begin - skipped : end - skipped] if parts else members[:0]


def _generator(*numbers: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(hash_seed(*numbers)))
