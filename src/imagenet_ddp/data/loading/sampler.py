"""Decide which images each rank takes at each step: every image once per epoch over all ranks (or every class equally
often), in the same number of steps on each rank.

Full steps take `batch_size` images per rank. If the images do not divide evenly, the last two steps share what is left,
and each step is spread evenly over the ranks: a batch may be smaller, and smaller by one on some ranks. A batch carries
the number of images of its step over all ranks (`Key.step_images`), and of the optimizer's step, the sum over several
batches with gradient accumulation (`Key.update_images`). The classifier weights the loss by the latter: each update
then uses the mean gradient over its images, however they are split.

A batch too small to train on (no image for a rank, or a single one, which batch norm refuses on 1×1 maps) is padded
with images that do not count (`Key.counts` is False): they contribute nothing to loss, gradient or metrics.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from imagenet_ddp.data.loading.balanced import balanced_order, count_earlier
from imagenet_ddp.system.seeding import hash_seed


class Key(NamedTuple):
    """Everything a sample depends on, so that any worker on any rank makes the same one."""

    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    counts: bool
    step_images: int  # images that count in this step, over all ranks
    update_images: int  # images that count in this update of the weights, over all ranks
    repeat: int = 0  # how often the image stood in this epoch's order before (data.repeats, data.sampling)

    def image_seed(self, seed: int) -> int:
        """Return the seed of the image's own randomness."""
        return hash_seed(seed, self.epoch, self.index, *((1, self.repeat) if self.repeat else ()))

    def batch_seed(self, seed: int) -> int:
        """Return the seed of the batch that begins with this image."""
        return hash_seed(seed, self.epoch, self.index, 2, self.repeat)


class BatchSampler(DistributedSampler):
    """Yields the batches of one rank, each a list of Keys. Passed to a DataLoader as `batch_sampler`; Lightning calls
    `set_epoch`.

    order_of: (seed, epoch) -> the epoch's order, for storage on which not every order is cheap; None: any order.
    accumulate: number of batches per update of the weights; num_steps: number of steps after which the epoch ends. Both
    are read when an epoch begins; its last update may have fewer batches. repeats: number of consecutive copies of each
    image in the order, so an epoch has that share of the images and as many steps. balance: int64 (num_images,), the
    classes of the images, each of which is to be equally frequent (balanced.py); None: each image once. It takes
    precedence over order_of and cannot be combined with repeats.

    A resumed epoch begins at an image, not at a step (`start_at`), so that another number of ranks can continue it.
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
        self.global_batch_size = batch_size * num_replicas
        self.fill_to = min(fill_to, batch_size)
        self._order_of = order_of
        self._accumulate, self._num_steps = accumulate, num_steps
        self.sampler = self  # Lightning looks for set_epoch at DataLoader.batch_sampler.sampler
        self._repeats = repeats
        self._balance = balance
        self._starts: dict[int, tuple[int, int]] = {}  # epoch -> image, step

    def start_at(self, epoch: int, image: int, step: int = 0) -> None:
        """Skip, in this one epoch, the first `image` images of its order, trained on in `step` steps before."""
        self._starts = {epoch: (image, step)}

    def __len__(self) -> int:
        return -(-self.num_images // self.global_batch_size)

    def order(self) -> np.ndarray:
        """Return int64 (num_images,): this epoch's order, a function of seed and epoch only."""
        # called in any case: a remote source starts fetching the epoch's files
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
        """Return the position at which each step of an epoch begins, from the image `first` on, and the number of
        images at the end. The last two steps share an incomplete step: a few images, or one, are a bad estimate for
        batch norm and can undo an epoch."""
        begins = list(range(first, self.num_images, self.global_batch_size))
        left = self.num_images - begins[-1] if begins else 0
        if len(begins) > 1 and left < self.global_batch_size:
            begins[-1] -= (self.global_batch_size - left) // 2
        return [*begins, self.num_images]

    def steps_before(self, epoch: int) -> int:
        """Return how many steps of this epoch were trained before it was resumed."""
        return self._start(epoch)[1]

    def _start(self, epoch: int) -> tuple[int, int]:
        return self._starts.get(epoch, (0, 0))

    def images_after(self, epoch: int, step: int) -> int:
        """Count the images of the epoch's order that remain after its first `step` steps."""
        first, earlier = self._start(epoch)
        steps = self.steps(first)
        return steps[min(step - earlier, len(steps) - 1)]

    def __iter__(self) -> Iterator[list[Key]]:  # type: ignore[override]
        order = self.order()
        repeats = count_earlier(order) if self._repeats > 1 or self._balance is not None else np.zeros_like(order)
        first, earlier = self._start(self.epoch)
        steps = list(pairwise(self.steps(first)))
        update_images = self._update_images([end - begin for begin, end in steps], earlier)
        for (begin, end), in_update in zip(steps, update_images, strict=True):
            share, rest = divmod(end - begin, self.num_replicas)
            # the images of a rank are consecutive; the first `rest` ranks take one more
            low = begin + self.rank * share + min(self.rank, rest)
            mine = range(low, low + share + (self.rank < rest))
            sizes = end - begin, in_update
            batch = [Key(self.epoch, int(order[place]), True, *sizes, int(repeats[place])) for place in mine]
            while len(batch) < self.fill_to:
                place = len(batch) % self.num_images
                batch.append(Key(self.epoch, int(order[place]), False, *sizes, int(repeats[place])))
            yield batch

    def _update_images(self, step_images: list[int], steps_before: int) -> list[int]:
        """Return the images in the update of each step. Lightning updates after every `accumulate` steps and after the
        last."""
        sums: Counter[int] = Counter()
        accumulate, num_steps = self._accumulate(), self._num_steps()
        for number, images in enumerate(step_images, steps_before):
            if number < num_steps:
                sums[number // accumulate] += images
        return [sums[number // accumulate] for number in range(steps_before, steps_before + len(step_images))]
