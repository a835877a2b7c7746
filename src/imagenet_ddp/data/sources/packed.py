"""Read images of a packed folder by position, with one read per image.

Nothing is loaded into memory in advance. Each process opens the index and the shards when it first needs them, so a
loader worker starts quickly, and all processes of a machine share the system's page cache. JPEGs are read with pread,
which takes one request per image and does not add the pages it reads to the memory of the process (on one core of an
AMD EPYC, a cold JPEG takes 101 to 111 µs, from a memory map 178 to 199). Raw pixels are memory-mapped, so that a crop
reads only the rows it needs (19 µs, with pread 35 to 40).
"""

import mmap
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from imagenet_ddp.config.schema.data import PackedData
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.data.decoding.decode import DEFAULT, Picture, Pixels, Reading, open_picture
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.sources.base import Images, Names, Scan, Source, SourceType
from imagenet_ddp.data.sources.pack_format import (
    FILE,
    PACK,
    WEIGHTS,
    Manifest,
    Split,
    missing_features,
    read_manifest,
    wrong_sizes,
)
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix, must_be
from imagenet_ddp.system.files import sha256
from imagenet_ddp.system.seeding import hash_seed
from imagenet_ddp.system.text import count_noun, first_line, shorten_list

# Largest number of open shards per process. A process may open 1,024 files (256 on macOS), and needs some of them for
# other purposes. Opening a shard again takes about 20 µs, a tenth of the time for decoding an image.
MAX_OPEN = 128


class Record(NamedTuple):
    """The index entry of one image: a row of pack_format.RECORD."""

    offset: int
    num_bytes: int
    shard: int
    crc32: int
    height: int
    width: int


class Shard:
    """An open shard. pixels: all its bytes if they are decoded images, else None."""

    def __init__(self, path: Path, is_raw: bool):
        self.file = os.open(path, os.O_RDONLY)
        self.touched_s = 0.0  # time at which its use was last recorded, for data=streamed
        self.pixels: np.ndarray | None = None
        if is_raw:
            self.pixels = np.frombuffer(mmap.mmap(self.file, 0, access=mmap.ACCESS_READ), dtype=np.uint8)

    def is_gone(self) -> bool:
        """Return whether the file was removed. Until the file is closed, it still takes up disk space."""
        return os.fstat(self.file).st_nlink == 0

    def __del__(self) -> None:
        if hasattr(self, "file"):
            os.close(self.file)


class PackedImages(Images):
    """One split of a packed folder. verify: compare the checksum of each image when it is read. window: number of
    shards among which images are shuffled; 0: all shards.

    The index is compared with its checksums and the shards each time a split is opened, which takes 0.2 s for
    ImageNet's 1.28 million images. Raises ConfigError if they differ.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        split: Split,
        form: str,
        *,
        reading: Reading = DEFAULT,
        verify: bool = False,
        window: int = 0,
        location: str = "",
    ):
        self.folder, self.name, self.split, self.form = folder, name, split, form
        self.reading = Reading(reading.decoder)  # EXIF orientation was applied, or not, when the images were packed
        self._verify, self._window = verify, window
        self.location, self.is_encoded = location or str(folder), form == "jpeg"
        self._arrays: dict[str, np.ndarray] = {}
        self._shards: dict[int, Shard] = {}
        for file in split.arrays.values():
            if sha256(folder / file.file) != file.sha256:
                raise ConfigError(
                    f"{folder / file.file} must be unchanged since it was packed, but its bytes do not match the "
                    f"SHA-256 in {FILE}. Hint: delete it and copy it again, or pack the images again."
                )
        try:
            wrong = split.wrong_index({key: self._array(key) for key in split.arrays}, form == "raw")
        except ValueError as error:  # of numpy, for a file that is no array
            wrong = first_line(error)
        if wrong:
            raise ConfigError(
                f"{folder} must have an index of its {name} images that fits the shards, but {wrong}. "
                "Hint: pack the images again."
            )
        self.targets = np.array(self._array("targets"))
        self.weights = np.array(self._array(WEIGHTS)) if WEIGHTS in split.arrays else None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what each process opens itself."""
        return {**self.__dict__, "_arrays": {}, "_shards": {}}

    def path(self, index: int) -> str:
        return f"{self.location}/{self.name}: {self.names[index]}"

    @property
    def names(self) -> Names:
        """Return the names that the images had in their source."""
        return Names(self._array("names"), self._array("name_ends"))

    def record(self, index: int) -> Record:
        return Record(*self._array("records")[index].item())

    def encoded(self, index: int) -> bytes:
        """Return the image as stored: a JPEG file, or (height, width, 3) bytes. Raises UnreadableImage."""
        return self._bytes(index, verify=self._verify)

    def open(self, index: int) -> Picture:
        """Return the image as a Picture. This method raises UnreadableImage, or the Picture does when it decodes a
        region."""
        if self.form == "raw":
            return Pixels(self._pixels(index))
        return open_picture(self.encoded(index), self.path(index), self.reading)

    def verify(self, index: int) -> None:
        """Raise UnreadableImage if the bytes differ from those that were packed."""
        self._bytes(index, verify=True)

    def order(self, seed: int, epoch: int) -> np.ndarray | None:
        """Return the order of an epoch, int64 (N,), which reads from at most `window` shards at a time, or None if any
        order may be used. The order is a function of seed, epoch and the packed folder only."""
        if not self._window or self._window >= len(self.split.shards):
            return None
        generator = np.random.Generator(np.random.PCG64(hash_seed(seed, epoch)))
        shard_of = self._array("records")["shard"]
        sizes = np.bincount(shard_of, minlength=len(self.split.shards))  # 0 for a shard without readable images
        members = np.split(np.argsort(shard_of, kind="stable"), np.cumsum(sizes)[:-1])
        shards = self.shards_of(seed, epoch)
        parts = []
        for first in range(0, len(shards), self._window):
            part = np.concatenate([members[shard] for shard in shards[first : first + self._window]])
            parts.append(generator.permutation(part))
        return np.concatenate(parts).astype(np.int64)

    def shards_of(self, seed: int, epoch: int) -> list[int]:
        """Return the numbers of all shards, in the order in which an epoch reads them."""
        generator = np.random.Generator(np.random.PCG64(hash_seed(seed, epoch, 1)))
        return generator.permutation(len(self.split.shards)).tolist()

    def _array(self, name: str) -> np.ndarray:
        """Return an array of the index. Its file is mapped into memory once per process."""
        if name not in self._arrays:
            path = self.folder / self.split.arrays[name].file
            # converted to an ndarray, which takes half as long to index as a memmap
            self._arrays[name] = np.asarray(np.lib.format.open_memmap(path, mode="r"))
        return self._arrays[name]

    def _shard(self, number: int) -> Shard:
        shard = self._shards.get(number)
        if shard is None:
            if len(self._shards) >= MAX_OPEN:
                del self._shards[next(iter(self._shards))]  # the one that was opened first
            path = self.folder / self.split.shards[number].file
            shard = self._shards[number] = Shard(path, self.form == "raw")
        return shard

    def _bytes(self, index: int, *, verify: bool) -> bytes:
        record = self.record(index)
        try:
            data = os.pread(self._shard(record.shard).file, record.num_bytes, record.offset)
        except OSError as error:
            raise self._unreadable(index, f"its shard cannot be read: {error}") from error
        if len(data) != record.num_bytes:
            raise self._unreadable(index, f"{self.split.shards[record.shard].file} is truncated")
        if verify:
            self._verify_bytes(index, record, data)
        return data

    def _pixels(self, index: int) -> np.ndarray:
        record = self.record(index)
        end = record.offset + record.num_bytes
        try:
            shard = self._shard(record.shard)
            # Reading a page beyond the end of a file kills the process (SIGBUS). This check takes 1 µs per image.
            is_there = os.fstat(shard.file).st_size >= end
        except OSError as error:
            raise self._unreadable(index, f"its shard cannot be read: {error}") from error
        if not is_there:
            raise self._unreadable(index, f"{self.split.shards[record.shard].file} is truncated")
        assert shard.pixels is not None
        pixels = shard.pixels[record.offset : end]
        if self._verify:
            self._verify_bytes(index, record, pixels)
        return pixels.reshape(record.height, record.width, 3)

    def _verify_bytes(self, index: int, record: Record, data: Any) -> None:
        if zlib.crc32(memoryview(data)) != record.crc32:
            file = self.split.shards[record.shard].file
            raise self._unreadable(index, f"its bytes in {file} differ from the packed ones (wrong checksum)")

    def _unreadable(self, index: int, reason: str) -> UnreadableImage:
        return UnreadableImage(self.path(index), reason)


class Packed(SourceType[PackedData]):
    def scan(self, data: PackedData, seed: int, purpose: Purpose, *, whole: bool = True) -> Scan:
        """Compare the sizes of files, but not their bytes."""
        if not data.root:
            way = Fix(("data.root=FOLDER",), said=f"set data.root=FOLDER, which `{PACK}` makes")
            raise ConfigError(must_be("data.root", "a packed folder", "null", way))
        folder = Path(data.root)
        manifest = read_manifest(folder)
        found = missing_features(manifest, str(folder), data, purpose)
        names = [name for name in purpose.splits if name in manifest.splits]
        if wrong := [text for name in names for text in wrong_sizes(folder, manifest.splits[name])]:
            found.append(
                f"{folder} must contain all packed files in full, but {shorten_list(wrong, 3)}. Hint: copy the folder "
                "again, or pack the images again."
            )
        return Scan(
            data, seed, purpose, found, partial(source_of, manifest, data, purpose, partial(PackedImages, folder))
        )

    def implied(self, data: PackedData) -> dict[str, Any]:
        """If the images were turned by their EXIF data when they were packed, say so, because a checkpoint's
        photographs are turned as those of its training were."""
        is_turned = False
        with suppress(ConfigError):  # which scan() reports
            is_turned = bool(data.root) and read_manifest(Path(str(data.root))).exif_orientation
        return {"exif_orientation": True} if is_turned else {}

    def recognise(self, root: str, folder: Path, otherwise: str) -> list[str]:
        return ["data=packed", f"data.root={root}"] if (folder / FILE).exists() else []


def source_of(manifest: Manifest, data: PackedData, purpose: Purpose, make: Callable[..., PackedImages]) -> Source:
    """Return the source with the splits that the command needs. make: called with the arguments of PackedImages after
    `folder`."""
    options = {"reading": Reading(data.decoder), "verify": data.verify, "window": data.shuffle_window_shards}
    images = {name: make(name, manifest.splits[name], manifest.form, **options) for name in purpose.splits}
    counts = " and ".join(f"{split.num_images:,} {name}" for name, split in manifest.splits.items())
    side = f"short side {manifest.short_side}" if manifest.short_side else "original sizes"
    left_out = sum(len(split.left_out) for split in manifest.splits.values())
    more = f"; {count_noun(left_out, 'unreadable image')} left out" if left_out else ""
    note = f"Packed as {manifest.form}, {side}: {counts} images{more}."
    return Source(manifest.classes, images.get("train"), images["val"], manifest.labels, notes=[note])
