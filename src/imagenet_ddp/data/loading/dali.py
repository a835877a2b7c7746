"""How NVIDIA DALI, where it is installed, decodes and crops the training images (loader=dali).

Everything else is the ordinary loader's: which images, in which order, which crop of each, whether it is flipped, and
what becomes of those that cannot be read. DALI gets the JPEGs that image.py would take for ordinary ones; all else is
decoded there. What runs on the CPU and on the GPU differs by DALI's name for the device alone.
"""

import importlib
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from imagenet_ddp.data.bad_images import Bad
from imagenet_ddp.data.decoding.image import JpegPicture, UnreadableImage, open_picture
from imagenet_ddp.data.loading.dataloader import Batch, ImageDataset
from imagenet_ddp.data.loading.sampler import BatchSampler, Key
from imagenet_ddp.data.loading.stall_watchdog import StallWatchdog
from imagenet_ddp.data.seeding import hash_seed
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.folder.images import FileImages
from imagenet_ddp.data.transforms import Box, TrainTransform, Transform, empty
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import count_noun, install

READ_AHEAD = 2  # batches whose files are read while DALI decodes the ones before
_DECODE_AHEAD = 1  # batches that DALI decodes while the model trains on the one before


def load() -> Any:
    """Return the module nvidia.dali. Raises ConfigError where it is not installed."""
    try:
        for part in ("fn", "pipeline", "types"):
            importlib.import_module(f"nvidia.dali.{part}")
        return importlib.import_module("nvidia.dali")
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"loader=dali needs NVIDIA DALI, which cannot be used here ({error}). "
            f"Hint: {install('imagenet_ddp[dali]')}, or loader=default."
        ) from error


def unsupported_reason(images: Images, augment: str) -> str:
    """Return why DALI cannot decode these images, for the log; "" where it can."""
    if augment != "crop":
        return "it makes random crops, and data.augment=none asks for none"
    if not images.is_encoded:
        return "it decodes JPEG files, and these images are pixels (data.cache_mib=0 caches none)"
    return ""


def choose_device(option: str, root_device: torch.device) -> torch.device:
    """Choose by loader.device: auto, cpu or gpu. root_device: where the model trains. Raises ConfigError."""
    if option == "gpu" and root_device.type != "cuda":
        raise ConfigError(
            f"loader.device=gpu needs training on a CUDA device, got {root_device.type}. Hint: loader.device=auto."
        )
    return root_device if option != "cpu" and root_device.type == "cuda" else torch.device("cpu")


def choose_num_threads(option: int | str, num_workers: int) -> int:
    """Choose by loader.num_threads; auto: as many as there would be loader processes, at least one."""
    return max(num_workers, 1) if option == "auto" else int(option)


def describe(device: torch.device, num_threads: int) -> str:
    where = "CPU" if device.type == "cpu" else "GPU"
    threads = count_noun(num_threads, "thread")
    return f"DALI {load().__version__}, decoding on the {where}, {threads} (loader.num_threads)"


class Crop(NamedTuple):
    """One image for DALI to decode."""

    key: Key
    encoded: bytes
    box: Box
    flipped: bool


@dataclass
class _PendingBatch:
    """A batch on its way."""

    keys: list[Key]
    crops: list[Crop] = field(default_factory=list)
    ready: dict[Key, tuple[Tensor, bool]] = field(default_factory=dict)  # decoded without DALI: pixels, flipped
    pipeline: "Pipeline | None" = None  # where the crops are decoded


class Pipeline:
    """Encoded JPEGs in, crops at the output size out, in the order of asking. After an error it is of no more use."""

    def __init__(self, batch_size: int, num_threads: int, device: torch.device):
        dali = load()
        fn, types = dali.fn, dali.types
        on_gpu = device.type == "cuda"
        self._pipeline = dali.pipeline.Pipeline(
            batch_size=batch_size,
            num_threads=num_threads,
            device_id=(device.index or 0) if on_gpu else None,
            prefetch_queue_depth=1,  # else the first call runs it as many times, for which nothing is fed yet
        )
        with self._pipeline:
            encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
            anchor = fn.external_source(name="anchor", dtype=types.INT32, ndim=1)
            shape = fn.external_source(name="shape", dtype=types.INT32, ndim=1)
            size = fn.external_source(name="size", dtype=types.FLOAT, ndim=1)
            crops = fn.decoders.image_slice(
                encoded,
                anchor,
                shape,
                axes=(0, 1),
                normalized_anchor=False,
                normalized_shape=False,
                adjust_orientation=False,
                output_type=types.RGB,
                device="mixed" if on_gpu else "cpu",
            )
            images = fn.resize(crops, size=size, antialias=True, interp_type=types.INTERP_LINEAR, dtype=types.UINT8)
            self._pipeline.set_outputs(images)
        self._pipeline.build()
        self.num_pending = 0
        self.is_broken = False

    def schedule(self, crops: Sequence[Crop], size: int) -> None:
        feed = self._pipeline.feed_input
        feed("encoded", [np.frombuffer(each.encoded, dtype=np.uint8) for each in crops])
        feed("anchor", np.array([(each.box.top, each.box.left) for each in crops], dtype=np.int32))
        feed("shape", np.array([(each.box.height, each.box.width) for each in crops], dtype=np.int32))
        feed("size", np.full((len(crops), 2), size, dtype=np.float32))
        self._pipeline.schedule_run()
        self.num_pending += 1

    def take(self) -> Tensor:
        """uint8 (B, 3, size, size), channels last, of the oldest batch that was scheduled. Raises RuntimeError, and
        what DALI derives from others."""
        (images,) = self._pipeline.outputs()
        self.num_pending -= 1
        return torch.from_dlpack(images.as_tensor()).permute(0, 3, 1, 2)


class DaliDataset(ImageDataset):
    """ImageDataset of which some are decoded already."""

    transform: TrainTransform  # type: ignore[assignment]

    def __init__(self, images: Images, transform: TrainTransform, seed: int, device: torch.device, *, pin_memory: bool):
        super().__init__(images, transform, seed, replace=True)
        self._device, self._pin_memory = device, pin_memory and device.type == "cpu"
        self._ready: Mapping[Key, tuple[Tensor, bool]] = {}
        # a pack's open shards are not made for several threads
        self._read_lock = nullcontext() if isinstance(images, FileImages) else Lock()

    def read(self, keys: list[Key]) -> _PendingBatch:
        """Runs in another thread. What cannot be read is left out: `batch` meets it again, and says so."""
        pending = _PendingBatch(keys)
        for key in keys:
            try:
                with self._read_lock:
                    encoded = self.images.encoded(key.index)
                assert encoded is not None
                picture = open_picture(encoded, self.images.path(key.index), self.images.reading)
            except (UnreadableImage, OSError):
                continue
            generator = random.Random(hash_seed(self.seed, key.epoch, key.index))
            if isinstance(picture, JpegPicture):
                flipped = generator.random() < self.transform.flip  # first, as TrainTransform.into does
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
    """Replaces an EpochLoader. Lightning sets the epoch at batch_sampler.sampler.

    say: for the log; on_bad_images: gets each batch's unreadable images, and may raise.
    """

    def __init__(
        self,
        samples: DaliDataset,
        sampler: BatchSampler,
        *,
        num_threads: int,
        device: torch.device,
        on_bad_images: Callable[[list[Bad]], None] | None = None,
        say: Callable[[str], None] = print,
        watchdog: Callable[[Any, str], StallWatchdog] = StallWatchdog,
    ):
        self.batch_sampler = sampler
        self._watchdog = watchdog
        self._samples, self._num_threads, self._device = samples, num_threads, device
        self._judge, self._say = on_bad_images, say
        self._pipeline: Pipeline | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._has_failed = False

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Batch]:
        return self._watchdog(self, self._samples.images.location).watch(self._batches)

    def _batches(self) -> Iterator[Batch]:
        """Start at the first batch, because Lightning sets the sampler's epoch only then."""
        if self._pipeline is not None and self._pipeline.num_pending:
            self._pipeline = None  # an abandoned epoch: drop the batches still in it
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
            if bad and self._judge is not None:
                self._judge(bad)
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
        except Exception as error:  # DALI derives its errors from many
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
        """Decode the batches in this pipeline without it: after an error DALI names no image and takes no more work."""
        pipeline.is_broken = True
        if not self._has_failed:
            reason = next((line for line in reversed(str(error).splitlines()) if "rror" in line), type(error).__name__)
            self._say(
                "Warning: DALI cannot decode one of the images of a batch; such batches are decoded without it "
                f"({reason.strip()})."
            )
        self._has_failed = True


def make_dali_loader(
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
) -> DaliLoader:
    """images and transform: such as `unsupported_reason` accepts. ConfigError: DALI is not installed."""
    load()
    assert isinstance(transform, TrainTransform)
    samples = DaliDataset(images, transform, seed, device, pin_memory=pin_memory)
    return DaliLoader(
        samples,
        sampler,
        num_threads=num_threads,
        device=device,
        on_bad_images=on_bad_images,
        say=say,
        watchdog=watchdog,
    )
