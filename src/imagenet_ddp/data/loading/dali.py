"""Load training images with NVIDIA DALI (loader=dali).

Apart from decoding, this loader works like the ordinary loader: it uses the same images in the same order with the same
crops and flips, and handles unreadable images in the same way. DALI decodes only the ordinary JPEGs (JpegPicture in
decoding/image.py). All other images are decoded by image.py.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from imagenet_ddp.data.bad_images import Bad
from imagenet_ddp.data.decoding.image import JpegPicture, UnreadableImage, open_picture
from imagenet_ddp.data.loading.dali_pipeline import Crop, Pipeline, load
from imagenet_ddp.data.loading.dataloader import Batch, ImageDataset
from imagenet_ddp.data.loading.sampler import BatchSampler, Key
from imagenet_ddp.data.loading.stall_watchdog import StallWatchdog
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.folder.images import FileImages
from imagenet_ddp.data.transforms import TrainTransform, Transform, empty

READ_AHEAD = 2  # batches whose files are read while DALI decodes earlier ones
_DECODE_AHEAD = 1  # batches that DALI decodes while the model trains on the previous batch


def unsupported_reason(images: Images, augment: str) -> str:
    """Return the reason why DALI cannot load these images with this augmentation, for the log, or "" if it can."""
    if augment != "crop":
        return "DALI always makes random crops, unlike data.augment=none"
    if not images.is_encoded:
        return "DALI decodes JPEG files, but these images are stored as pixels"
    return ""


@dataclass
class _PendingBatch:
    """A batch that is being decoded."""

    keys: list[Key]
    crops: list[Crop] = field(default_factory=list)
    ready: dict[Key, tuple[Tensor, bool]] = field(default_factory=dict)  # pixels decoded without DALI, flipped
    pipeline: Pipeline | None = None  # the pipeline that decodes the crops


class DaliDataset(ImageDataset):
    """ImageDataset that can use images which DALI has already decoded."""

    transform: TrainTransform  # type: ignore[assignment]

    def __init__(self, images: Images, transform: TrainTransform, seed: int, device: torch.device, *, pin_memory: bool):
        super().__init__(images, transform, seed, replace=True)
        self._device, self._pin_memory = device, pin_memory and device.type == "cpu"
        self._ready: Mapping[Key, tuple[Tensor, bool]] = {}
        # the open shards of a packed folder are not thread-safe
        self._read_lock = nullcontext() if isinstance(images, FileImages) else Lock()

    def read(self, keys: list[Key]) -> _PendingBatch:
        """Read the files of a batch. This method runs in another thread. It leaves out unreadable files, which `batch`
        tries again and reports."""
        pending = _PendingBatch(keys)
        for key in keys:
            try:
                with self._read_lock:
                    encoded = self.images.encoded(key.index)
                assert encoded is not None
                picture = open_picture(encoded, self.images.path(key.index), self.images.reading)
            except (UnreadableImage, OSError):
                continue
            generator = random.Random(key.image_seed(self.seed))
            if isinstance(picture, JpegPicture):
                flipped = generator.random() < self.transform.flip  # drawn first, as in TrainTransform.into
                box = self.transform.box(picture.height, picture.width, generator)
                pending.crops.append(Crop(key, encoded, box, flipped))
            else:
                size = self.transform.size(key.epoch)
                pixels = empty(size, size, 3)
                pending.ready[key] = pixels, self.transform.into(pixels, picture, generator)
        return pending

    def batch(self, keys: list[Key], ready: Mapping[Key, tuple[Tensor, bool]]) -> Batch:
        self._ready = ready
        try:
            with nullcontext() if all(key in ready for key in keys) else self._read_lock:
                return self.__getitems__(keys)
        finally:
            self._ready = {}

    def _new_images(self, count: int, size: int) -> Tensor:
        flat = torch.empty((count, size, size, 3), dtype=torch.uint8, device=self._device, pin_memory=self._pin_memory)
        return flat.permute(0, 3, 1, 2)

    def _fill(self, out: Tensor, key: Key, index: int) -> bool:
        if index == key.index and key in self._ready:
            pixels, flipped = self._ready[key]
        else:
            pixels = empty(*out.shape[1:], 3) if out.is_cuda else out
            flipped = super()._fill(pixels, key, index)
        if pixels is not out:
            out.copy_(pixels)
        return flipped


class DaliLoader:
    """Replacement for EpochLoader that decodes with DALI. Lightning sets the epoch of batch_sampler.sampler.

    images, transform: must be supported (`unsupported_reason`). on_bad_images: called with the unreadable images of a
    batch if there are any; it may raise an error. say: writes a line to the log. watchdog: called with this loader and
    the location of the images. Raises ConfigError if DALI is not installed.
    """

    def __init__(
        self,
        images: Images,
        transform: Transform,
        sampler: BatchSampler,
        *,
        seed: int,
        num_threads: int,
        device: torch.device,
        pin_memory: bool,
        on_bad_images: Callable[[list[Bad]], None] | None = None,
        say: Callable[[str], None] = print,
        watchdog: Callable[[Any, str], StallWatchdog] = StallWatchdog,
    ):
        load()
        assert isinstance(transform, TrainTransform)
        self.batch_sampler = sampler
        self._samples = DaliDataset(images, transform, seed, device, pin_memory=pin_memory)
        self._num_threads, self._device = num_threads, device
        self._on_bad_images, self._say, self._watchdog = on_bad_images, say, watchdog
        self._pipeline: Pipeline | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._has_failed = False

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Batch]:
        return self._watchdog(self, self._samples.images.location).watch(self._batches)

    def _batches(self) -> Iterator[Batch]:
        """Yield the batches of an epoch. This generator starts when the first batch is requested, because Lightning has
        not set the sampler's epoch before."""
        if self._pipeline is not None and self._pipeline.num_pending:
            self._pipeline = None  # the last epoch was abandoned, so drop its pending batches
        if self._readers is None:
            self._readers = ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="read")
        batches = iter(self.batch_sampler)
        reads: deque[Future[_PendingBatch]] = deque()
        pending_batches: deque[_PendingBatch] = deque()
        self._read_on(batches, reads)
        while reads or pending_batches:
            while reads and len(pending_batches) <= _DECODE_AHEAD:
                pending_batches.append(self._scheduled(reads.popleft().result()))
                self._read_on(batches, reads)
            batch: Any = self._finished(pending_batches.popleft())
            bad = batch.pop("unreadable")
            if bad and self._on_bad_images is not None:
                self._on_bad_images(bad)
            yield batch

    def close(self) -> None:
        """End this loader's threads."""
        if self._readers is not None:
            self._readers.shutdown(cancel_futures=True)
        self._readers = self._pipeline = None

    def _read_on(self, batches: Iterator[list[Key]], reads: "deque[Future[_PendingBatch]]") -> None:
        assert self._readers is not None
        while len(reads) < READ_AHEAD and (keys := next(batches, None)) is not None:
            reads.append(self._readers.submit(self._samples.read, keys))

    def _scheduled(self, pending: _PendingBatch) -> _PendingBatch:
        if not pending.crops:
            return pending
        if self._pipeline is None or self._pipeline.is_broken:
            self._pipeline = Pipeline(self.batch_sampler.batch_size, self._num_threads, self._device)
        try:
            self._pipeline.schedule(pending.crops, self._samples.transform.size(pending.keys[0].epoch))
            pending.pipeline = self._pipeline
        except Exception as error:  # DALI raises errors of many types
            self._failed(self._pipeline, error)
        return pending

    def _finished(self, pending: _PendingBatch) -> Batch:
        ready = pending.ready
        if pending.pipeline is not None and not pending.pipeline.is_broken:
            try:
                pixels = pending.pipeline.take()
                found = {each.key: (pixels[number], each.flipped) for number, each in enumerate(pending.crops)}
                ready = {**ready, **found}
            except Exception as error:
                self._failed(pending.pipeline, error)
        return self._samples.batch(pending.keys, ready)

    def _failed(self, pipeline: Pipeline, error: Exception) -> None:
        """Mark a pipeline as broken, so that its batches are decoded without DALI. After an error, DALI does not name
        the image and accepts no more work. Only the first error is logged."""
        pipeline.is_broken = True
        if not self._has_failed:
            reason = next((line for line in reversed(str(error).splitlines()) if "rror" in line), type(error).__name__)
            self._say(
                f"Warning: DALI cannot decode one of the images of a batch ({reason.strip()}). Such batches are "
                "decoded without DALI."
            )
        self._has_failed = True
