"""Decode small sets once: pixels stay in memory that all workers of a process share."""

import os
from pathlib import Path

import numpy as np
import torch

from imagenet_ddp.data.decoding.image import Picture, Pixels, UnreadableImage
from imagenet_ddp.data.sources.base import Images, Source

MIB = 2**20
SAMPLE = 64  # images whose sizes tell whether it is worth looking at all
SHM = Path("/dev/shm")  # where shared memory lies on Linux; in a container it may be small
SHM_SHARE = 0.5  # of what is free there: batches on their way need room too


class MemoryImages(Images):
    """images, each decoded at its first use. sizes: int64 (N, 2), height and width; 0: not cached.

    Two workers may decode the same image at the same time: both write the same bytes.
    """

    def __init__(self, images: Images, sizes: np.ndarray, *, shared: bool):
        self.images, self.targets, self.location, self._sizes = images, images.targets, images.location, sizes
        self._ends = np.cumsum(sizes.prod(axis=1) * 3)
        self._pixels = torch.empty(int(self._ends[-1]), dtype=torch.uint8)
        self._is_there = torch.zeros(len(sizes), dtype=torch.bool)
        if shared:
            self._pixels.share_memory_()
            self._is_there.share_memory_()

    @property
    def num_bytes(self) -> int:
        return len(self._pixels)

    def path(self, index: int) -> str:
        return self.images.path(index)

    def order(self, seed: int, epoch: int) -> np.ndarray | None:
        """Keep the order of the source: it must not depend on what fits into memory."""
        return self.images.order(seed, epoch)

    def open(self, index: int) -> Picture:
        height, width = self._sizes[index].tolist()
        if not height:
            return self.images.open(index)
        end = int(self._ends[index])
        pixels = self._pixels.numpy()[end - height * width * 3 : end].reshape(height, width, 3)
        if not self._is_there[index]:
            picture = self.images.open(index)
            if (picture.height, picture.width) != (height, width):  # the file has changed
                return picture
            pixels[:] = picture.region(0, 0, height, width)
            self._is_there[index] = True
        return Pixels(pixels)


def cache_in_memory(source: Source, cache_mib: int, *, shared: bool) -> Source:
    """Cache each split for which there is room, and add a note to the source. shared: with worker processes."""
    room = cache_mib * MIB
    if shared and SHM.is_dir():
        room = min(room, int(SHM_SHARE * _free(SHM)))
    for name, what in (("train", "training"), ("val", "validation")):
        images = getattr(source, name)
        cached = _cached(images, room, shared=shared)
        if cached is not None:
            room -= cached.num_bytes
            setattr(source, name, cached)
            source.notes.append(
                f"Memory: the {len(cached)} {what} images are decoded once and kept, "
                f"{cached.num_bytes / MIB:.0f} MiB per process (data.cache_mib)."
            )
    return source


def _cached(images: Images | None, room: int, *, shared: bool) -> MemoryImages | None:
    if images is None or not len(images) or _size(images, 0) is None:
        return None
    sample = np.linspace(0, len(images) - 1, min(SAMPLE, len(images)), dtype=np.int64)
    sample_bytes = [3 * height * width for height, width in (_size(images, int(index)) or (0, 0) for index in sample)]
    if np.mean(sample_bytes) * len(images) > room:
        return None
    sizes = np.array([_size(images, index) or (0, 0) for index in range(len(images))], dtype=np.int64)
    return MemoryImages(images, sizes, shared=shared) if 0 < sizes.prod(axis=1).sum() * 3 <= room else None


def _size(images: Images, index: int) -> tuple[int, int] | None:
    """Return height and width; 0, 0 for an image that cannot be read, which is reported once it is needed."""
    try:
        return images.size(index)
    except (UnreadableImage, OSError):
        return 0, 0


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
