"""Decide which images each rank loads at each step, which is one forward pass on all ranks. Over all ranks, an epoch
has each image once (or each class equally often), and every rank takes the same number of steps.

A full step has `batch_size` images per rank. If the images do not divide evenly, the last two steps share the remaining
images, and each of these steps divides its images evenly among the ranks. Batches may then be smaller than batch_size,
and some ranks may have one image fewer than others. Each batch carries the number of images in its step, summed over
all ranks (`SampleKey.step_images`), and the number of images in its update of the weights (`SampleKey.update_images`),
which is the sum over several steps with gradient accumulation. The classifier weights the loss by the latter number, so
that each update uses the mean gradient over its images, however they are divided into batches.

A batch that is too small to train on (no image for a rank, or a single image, for which batch norm raises an error if
its feature maps are 1×1) is padded with images that do not count (`SampleKey.counts` is False). They contribute nothing
to loss, gradient or metrics.

With data.sampling=balanced, each class is equally frequent (`balanced_order`). In an epoch of n images of C classes,
each class has n/C images, rounded up or down; which classes are rounded up changes from epoch to epoch. The
images of a class are drawn from one sequence for the whole training, which consists of consecutive shuffles of all its
images. Therefore no image is repeated before every other image of its class has been drawn. The order of an epoch is a
function of classes, seed and epoch only, so earlier epochs need not be computed.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from imagenet_ddp.data.sources.base import positions_of_each
from imagenet_ddp.system.seeding import hash_seed

# Each generator draws at least this number of images, for a small class several shuffles. Drawing so many takes as long
# as making the generator.
_LEAST = 256


class SampleKey(NamedTuple):
    """Everything on which a sample depends, so that any worker on any rank makes the same sample."""

    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    counts: bool
    step_images: int  # images that count in this step, over all ranks
    update_images: int  # images that count in this update of the weights, over all ranks
    repeat: int = 0  # how often the image occurs earlier in this epoch's order (data.repeats, data.sampling)

    def image_seed(self, seed: int) -> int:
        """Return the seed for the random choices that concern this image."""
        return hash_seed(seed, self.epoch, self.index, *((1, self.repeat) if self.repeat else ()))

    def batch_seed(self, seed: int) -> int:
        """Return the seed for the random choices that concern the whole batch whose first image this is."""
        return hash_seed(seed, self.epoch, self.index, 2, self.repeat)


class BatchSampler(DistributedSampler):
    """Sampler that yields the batches of one rank, each as a list of SampleKeys. It is passed to a DataLoader as
    `batch_sampler`, and Lightning calls `set_epoch`.

    fill_to: smaller batches are padded to this number of images. order_of: called with (seed, epoch); returns the order
    of the epoch, for storage on which a random order is slow, or None if any order may be used. accumulate: returns the
    number of batches per update of the weights. num_steps: returns the number of steps after which the epoch ends. Both
    are called when an epoch begins; its last update may have fewer batches. repeats: number of consecutive copies of
    each image in the order. With n copies, an epoch has 1/n of the images and the same number of steps. balance: int64
    (num_images,), the classes of the images, if all classes are to be equally frequent (balanced_order); None: an epoch
    has each image once. It takes precedence over order_of and cannot be combined with repeats.

    A resumed epoch begins at an image, not at a step (`start_at`), so that a different number of ranks can continue it.
    """

    def __init__(
        self,
        num_images: int,
        batch_size: int,
        num_replicas: int,
        rank: int,
        *,
        shuffle: bool,
        seed: int,
        fill_to: int,
        order_of: Callable[[int, int], np.ndarray | None] | None = None,
        accumulate: Callable[[], int] = lambda: 1,
        num_steps: Callable[[], float] = lambda: math.inf,
        repeats: int = 1,
        balance: np.ndarray | None = None,
    ):
        super().__init__(range(num_images), num_replicas, rank, shuffle=shuffle, seed=seed)  # type: ignore[arg-type]
        self.num_images = num_images
        self.batch_size = batch_size
        self.step_images = batch_size * num_replicas
        self.fill_to = min(fill_to, batch_size)
        self._order_of = order_of
        self._accumulate, self._num_steps = accumulate, num_steps
        self.sampler = self  # Lightning looks for set_epoch at DataLoader.batch_sampler.sampler
        self._repeats = repeats
        self._balance = balance
        self._starts: dict[int, tuple[int, int]] = {}  # epoch -> image, step

    def start_at(self, epoch: int, image: int, step: int = 0) -> None:
        """In `epoch`, skip the first `image` images of its order, which were trained on in `step` steps. Other epochs
        are not affected."""
        self._starts = {epoch: (image, step)}

    def __len__(self) -> int:
        return -(-self.num_images // self.step_images)

    def order(self) -> np.ndarray:
        """Return the order of this epoch, int64 (num_images,), a function of seed and epoch only."""
        # always called, because a remote source then starts to fetch the epoch's files
        order = self._order_of(self.seed, self.epoch) if self._order_of is not None else None
        if not self.shuffle:
            order = np.arange(self.num_images)
        elif self._balance is not None:
            order = balanced_order(self._balance, self.seed, self.epoch)
        elif order is None:
            generator = torch.Generator().manual_seed(hash_seed(self.seed, self.epoch))
            order = torch.randperm(self.num_images, generator=generator).numpy()
        return order if self._repeats == 1 else np.repeat(order, self._repeats)[: self.num_images]

    def steps(self, first: int = 0) -> list[int]:
        """Return the positions in an epoch's order at which its steps begin, starting with the image `first`, followed
        by the number of images. If the last step would be incomplete, the last two steps share their images, because
        one image or a few give batch norm a bad estimate, which can undo the progress of an epoch."""
        begins = list(range(first, self.num_images, self.step_images))
        left = self.num_images - begins[-1] if begins else 0
        if len(begins) > 1 and left < self.step_images:
            begins[-1] -= (self.step_images - left) // 2
        return [*begins, self.num_images]

    def steps_before(self, epoch: int) -> int:
        """Return how many steps of this epoch were completed before it was resumed."""
        return self._start(epoch)[1]

    def _start(self, epoch: int) -> tuple[int, int]:
        return self._starts.get(epoch, (0, 0))

    def images_after(self, epoch: int, step: int) -> int:
        """Return how many images of the epoch's order its first `step` steps have used."""
        first, earlier = self._start(epoch)
        steps = self.steps(first)
        return steps[min(step - earlier, len(steps) - 1)]

    def __iter__(self) -> Iterator[list[SampleKey]]:  # type: ignore[override]
        order = self.order()
        repeats = count_earlier(order) if self._repeats > 1 or self._balance is not None else np.zeros_like(order)
        first, earlier = self._start(self.epoch)
        steps = list(pairwise(self.steps(first)))
        update_images = self._update_images([end - begin for begin, end in steps], earlier)
        for (begin, end), in_update in zip(steps, update_images, strict=True):
            share, rest = divmod(end - begin, self.num_replicas)
            # each rank takes consecutive images; the first `rest` ranks take one more than the others
            low = begin + self.rank * share + min(self.rank, rest)
            mine = range(low, low + share + (self.rank < rest))
            sizes = end - begin, in_update
            batch = [SampleKey(self.epoch, int(order[place]), True, *sizes, int(repeats[place])) for place in mine]
            while len(batch) < self.fill_to:
                place = len(batch) % self.num_images
                batch.append(SampleKey(self.epoch, int(order[place]), False, *sizes, int(repeats[place])))
            yield batch

    def _update_images(self, step_images: list[int], steps_before: int) -> list[int]:
        """Return, for each step, the number of images in the update of the weights to which it belongs. Lightning
        updates the weights after every `accumulate` steps and after the last step."""
        sums: Counter[int] = Counter()
        accumulate, num_steps = self._accumulate(), self._num_steps()
        for number, images in enumerate(step_images, steps_before):
            if number < num_steps:
                sums[number // accumulate] += images
        return [sums[number // accumulate] for number in range(steps_before, steps_before + len(step_images))]


def balanced_order(targets: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Return the order of an epoch: positions of images, int64 (N,). targets: int64 (N,), the classes of the images. A
    class without images is ignored."""
    classes, class_of_image = np.unique(targets, return_inverse=True)
    # Each class has `each` images in an epoch, and `left` of the classes, others in each epoch, have one more.
    each, left = divmod(len(targets), len(classes))
    turn = _generator(seed, 1).permutation(len(classes))
    # Of each class, these numbers of images are drawn before this epoch and before the next one.
    first, last = (number * each + _times_in_turn(turn, number * left) for number in (epoch, epoch + 1))
    class_of_place = _generator(seed, 3, epoch).permutation(np.repeat(np.arange(len(classes)), last - first))
    members, places = (positions_of_each(numbers, len(classes)) for numbers in (class_of_image, class_of_place))
    order = np.empty(len(targets), np.int64)
    for number, target in enumerate(classes.tolist()):
        order[places[number]] = _draw(members[number], int(first[number]), int(last[number]), (seed, 2, target))
    return order


def count_earlier(order: np.ndarray) -> np.ndarray:
    """Return int64 (N,): for each position, how often its image occurs at earlier positions."""
    places = np.argsort(order, kind="stable")
    begins = np.flatnonzero(np.diff(order[places], prepend=-1))
    result = np.empty(len(order), np.int64)
    result[places] = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    return result


def _times_in_turn(turn: np.ndarray, number: int) -> np.ndarray:
    """Return how often each class occurs among the first `number` terms of 0, 1, ..., C - 1, 0, 1, ...  turn: the term
    of each class."""
    return (number - turn + len(turn) - 1) // len(turn)


def _draw(members: np.ndarray, begin: int, end: int, seed: tuple[int, ...]) -> np.ndarray:
    """Return the elements from `begin` to `end` of the endless sequence of shuffles of `members`."""
    if begin == end:
        return members[:0]
    per_block = -(-_LEAST // len(members))  # shuffles drawn by one generator
    length = per_block * len(members)
    first_block, last_block = begin // length, (end - 1) // length
    blocks = [
        _generator(*seed, block).permuted(np.tile(members, (per_block, 1)), axis=1).ravel()
        for block in range(first_block, last_block + 1)
    ]
    return np.concatenate(blocks)[begin - first_block * length : end - first_block * length]


def _generator(*numbers: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(hash_seed(*numbers)))
