"""Make the DataLoader of one split, which yields batches of uint8 images."""

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from imagenet_ddp.data.decoding.decode import Picture, decode_whole
from imagenet_ddp.data.decoding.errors import LoadError, UnreadableImage
from imagenet_ddp.data.loader_failures import StallWatchdog
from imagenet_ddp.data.loader_processes import end_workers, init_worker, worker_context
from imagenet_ddp.data.sampler import BatchSampler, SampleKey
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.transforms import Transform, empty
from imagenet_ddp.data.unreadable_images import Bad
from imagenet_ddp.errors import is_silent_end, silent_end
from imagenet_ddp.system.seeding import hash_seed, seeded

_TRIES = 100  # replacements tried if all images of a batch are unreadable


class Batch(TypedDict):
    """A batch of images. The images that count come first, followed by those that only pad the batch (sampler.py)."""

    image: Tensor  # uint8 (B, 3, H, W), channels last; later float32, flipped and normalised on the device
    flip: Tensor  # bool (B,), whether each image is to be flipped horizontally on the device
    target: Tensor  # int64 (B,), or uint8 (B, num_classes) if images have several labels
    index: Tensor  # int64 (B,), position in the split
    num_counted: int  # images that count in this batch
    step_images: int  # images that count in this step, over all ranks
    update_images: int  # images that count in this update of the weights, over all ranks (sampler.py)
    seed: int  # seed for random choices that concern the whole batch (mixup, CutMix)
    unreadable: list[Bad]
    ignored: dict[int, int]  # position of an image -> its pixel_conversion.Ignored, if it is not NONE
    weight: NotRequired[Tensor]  # float32 (B,), factor of each image's loss, added on the device if images have weights
    soft_target: NotRequired[Tensor]  # float32 (B, num_classes), added on the device with mixup or CutMix


class ImageDataset(Dataset):
    """Dataset that loads and transforms a batch of images at a time. The random choices for a sample are a function of
    (seed, epoch, index, repeat) only.

    replace: true in training: another image replaces an unreadable image, so that the number of images per rank stays
    the same. If false, an unreadable image is left out, and a black image that does not count pads the batch.
    """

    def __init__(self, images: Images, transform: Transform, seed: int, *, replace: bool):
        self.images, self.transform, self.seed, self.replace = images, transform, seed, replace

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, keys: list[SampleKey]) -> Batch:
        try:
            return self._load(keys)
        except BaseException as error:
            # a loader process ignores Ctrl-C, so KeyboardInterrupt in it comes from the source, too
            if not is_silent_end(error) and (get_worker_info() is None or not isinstance(error, KeyboardInterrupt)):
                raise
            # torch would take StopIteration for the end of the epoch, and a loader process would end without an error
            raise LoadError(silent_end(error, f"the source of the images ({type(self.images).__name__})")) from error

    def _load(self, keys: list[SampleKey]) -> Batch:
        size = self.transform.size(keys[0].epoch)
        images = empty(len(keys), size, size, 3)
        if get_worker_info() is not None:
            images.share_memory_()  # before it is filled: sending a batch then takes 2 ms less for 32 images
        indices: list[int] = []
        flips: list[bool] = []
        ignored: dict[int, int] = {}

        def append(key: SampleKey, index: int) -> None:
            """Load an image into the next free row of the batch, which stays free if the image is unreadable."""
            flip, parts = self._fill(images[len(indices)], key, index)
            flips.append(flip)
            indices.append(index)
            if parts:
                ignored[index] = parts

        unreadable: list[Bad] = []
        failed: list[SampleKey] = []
        for key in keys:
            try:
                append(key, key.index)
            except UnreadableImage as error:
                unreadable.append((error.path, error.reason))
                failed.append(key)
        num_counted = sum(key.counts for key in keys)
        if self.replace:
            # readable images of the same batch are repeated or, if there are none, one of the split
            others = itertools.cycle(list(indices) or [self._any(failed[0])])
            for key, index in zip(failed, others, strict=False):
                append(key, index)
        else:
            images[len(indices) :] = 0
            indices += [key.index for key in failed]
            flips += [False] * len(failed)
            num_counted -= sum(key.counts for key in failed)
        return Batch(
            image=images,
            flip=torch.tensor(flips, dtype=torch.bool),
            target=torch.from_numpy(self.images.targets[indices]),
            index=torch.tensor(indices, dtype=torch.int64),
            num_counted=num_counted,
            step_images=keys[0].step_images,
            update_images=keys[0].update_images,
            seed=keys[0].batch_seed(self.seed),
            unreadable=unreadable,
            ignored=ignored,
        )

    def _fill(self, out: Tensor, key: SampleKey, index: int) -> tuple[bool, int]:
        """Load an image into uint8 (H, W, 3). Return (whether it is to be flipped, value of its Ignored)."""
        seed = key.image_seed(self.seed)
        with seeded(seed) if self.images.draws else nullcontext():
            picture = open_image(self.images, index)
        flip = self.transform.into(out, picture, random.Random(seed))
        return flip, picture.ignored.value

    def _any(self, key: SampleKey) -> int:
        """Return the index of a random image that can be read. Raises LoadError if there seems to be none."""
        generator, reason = random.Random(hash_seed(self.seed, key.epoch, key.index, 1)), ""
        for _ in range(_TRIES):
            index = generator.randrange(len(self.images))
            try:
                decode_whole(open_image(self.images, index))
            except UnreadableImage as error:
                reason = error.reason
                continue
            return index
        raise LoadError(
            f"{self.images.path(key.index)} cannot be read as an image, nor can {_TRIES} others that were tried in its "
            f"place, the last because: {reason}. Hint: run `python -m imagenet_ddp.prepare prepare=check` with the "
            "same data options to list all unreadable images."
        )


def open_image(images: Images, index: int) -> Picture:
    """Open an image of the split. Raises UnreadableImage if the image is damaged or missing, or if reading is
    not permitted."""
    try:
        return images.open(index)
    except OSError as error:
        raise UnreadableImage(images.path(index), (error.strerror or str(error)).lower()) from error
    except MemoryError as error:
        raise UnreadableImage(images.path(index), "there is not enough memory to open it") from error


class EpochLoader(DataLoader):
    """DataLoader that makes its iterator when the first batch is requested. Lightning calls iter() before it sets the
    sampler's epoch, so after a resume a plain loader with workers would already have loaded the first batches of
    epoch 0."""

    on_bad_images: Callable[[list[Bad]], None] | None = None
    on_ignored: Callable[[dict[int, int]], None] | None = None
    watchdog: Callable[[Any, str], StallWatchdog] = StallWatchdog

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        samples: Any = self.dataset
        for batch in self.watchdog(self, samples.images.location).watch(super().__iter__):
            bad, ignored = batch.pop("unreadable"), batch.pop("ignored")
            if bad and self.on_bad_images is not None:
                self.on_bad_images(bad)
            if ignored and self.on_ignored is not None:
                self.on_ignored(ignored)
            yield batch

    def close(self) -> None:
        """End this loader's processes, if it has any."""
        end_workers(self)


def make_loader(
    images: Images,
    transform: Transform,
    sampler: BatchSampler,
    *,
    seed: int,
    num_workers: int,
    pin_memory: bool,
    replace: bool = True,
    on_bad_images: Callable[[list[Bad]], None] | None = None,
    on_ignored: Callable[[dict[int, int]], None] | None = None,
    watchdog: Callable[[Any, str], StallWatchdog] = StallWatchdog,
) -> EpochLoader:
    """Make the loader of one split. replace: as for ImageDataset. on_bad_images, on_ignored: called here with
    Batch.unreadable and Batch.ignored unless they are empty; the first may raise an error. watchdog: called with the
    loader and the location of its images; returns the watchdog of one epoch."""
    loader = EpochLoader(
        ImageDataset(images, transform, seed, replace=replace),
        batch_sampler=sampler,
        num_workers=num_workers,
        collate_fn=_identity,
        pin_memory=pin_memory,
        multiprocessing_context=worker_context() if num_workers else None,
        persistent_workers=num_workers > 0,
        worker_init_fn=init_worker,
    )
    loader.on_bad_images, loader.on_ignored, loader.watchdog = on_bad_images, on_ignored, watchdog
    return loader


def _identity(batch: Any) -> Any:
    return batch
