"""Write the shards of a packed split. A finished shard has a record beside it, by which the same command goes on after
it if it was stopped."""

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from imagenet_ddp.data.ignored_parts import IgnoredParts
from imagenet_ddp.data.sources.base import Images, Names, positions_of_each
from imagenet_ddp.data.sources.pack_format import RECORD, WEIGHTS, File, Split
from imagenet_ddp.data.unreadable_images import BadImages
from imagenet_ddp.errors import RunError
from imagenet_ddp.prepare.encode import EncodedImage
from imagenet_ddp.prepare.worker_pool import Result
from imagenet_ddp.system.files import atomic_path, sha256


@dataclass
class Shard:
    """A written shard. records: RECORD (n,), in the order of its images, with num_bytes 0 for those left out. left_out:
    position in the split -> reason. ignored: position in the split -> Ignored."""

    file: File
    records: np.ndarray
    left_out: dict[int, str] = field(default_factory=dict)
    ignored: dict[int, int] = field(default_factory=dict)
    source_bytes: int = 0

    def save(self, folder: Path) -> None:
        """Write the record of the finished shard."""
        about = {"sha256": self.file.sha256, "ignored": self.ignored, "source_bytes": self.source_bytes}
        with atomic_path(_record_of(folder, self.file.file)) as part, part.open("wb") as file:
            np.savez(file, records=self.records, about=np.frombuffer(json.dumps(about).encode(), np.uint8))
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def load(cls, folder: Path, name: str) -> "Shard | None":
        """Return the shard of that name if it is finished, and on the disk as it was written."""
        record, path = _record_of(folder, name), folder / name
        if not (record.is_file() and path.is_file()):
            return None
        try:  # after a power cut, either may have any bytes
            with np.load(record) as arrays:
                about, records = json.loads(arrays["about"].tobytes()), arrays["records"]
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
            return None
        if sha256(path) != about["sha256"]:
            return None
        ignored = {int(index): value for index, value in about["ignored"].items()}
        file = File(name, path.stat().st_size, about["sha256"])
        return cls(file, records, ignored=ignored, source_bytes=about["source_bytes"])


def _record_of(folder: Path, name: str) -> Path:
    return folder / f".{name}.npz"


def divide(num_images: int, per_shard: int, *, shuffle: bool, parts: np.ndarray | None = None) -> list[np.ndarray]:
    """Return the positions of the images in each shard, in the order in which they are written. Shuffling makes a few
    shards a fair sample of all classes. The order is always the same, because RandomState's stream is frozen (NEP 19).

    parts: int64 (N,), the number of the part that each image is in. Then whole parts are shuffled, each of which is
    read once.
    """
    if shuffle and parts is not None:
        of_each = positions_of_each(parts)
        order = np.concatenate([of_each[part] for part in np.random.RandomState(0).permutation(len(of_each))])
        return [order[first : first + per_shard] for first in range(0, num_images, per_shard)]
    order = np.random.RandomState(0).permutation(num_images) if shuffle else np.arange(num_images)
    return [np.sort(order[first : first + per_shard]) for first in range(0, num_images, per_shard)]


def shard_name(split: str, number: int) -> str:
    return f"{split}-{number:05}.bin"


def write_split(
    folder: Path,
    name: str,
    source: tuple[Images, Names],
    shards: Sequence[np.ndarray],
    finished: Mapping[int, Shard],
    encoded: Iterator[Result],
    bad_images: BadImages,
    ignored: IgnoredParts,
    count: Callable[[int], None],
) -> Split:
    """Write the shards and the index of a split. Raises RunError if too many images, or all, cannot be read.

    finished: number -> shard that is there already. encoded: the images of the others, in order. count: called after
    each image with its size in the source, in bytes.
    """
    (images, names), source_bytes, files = source, 0, list[File]()
    records, left_out = np.zeros(len(images), RECORD), dict[int, str]()
    for number, indices in enumerate(shards):
        shard = finished.get(number)
        if shard is None:
            shard = _write(folder / shard_name(name, number), images, number, indices, encoded, bad_images, count)
            if not shard.left_out:  # else the same command reads these images again, because a failure may pass
                shard.save(folder)
        ignored.add(name, images, shard.ignored)
        records[indices] = shard.records
        left_out |= shard.left_out
        source_bytes += shard.source_bytes
        files.append(shard.file)
    is_packed = records["num_bytes"] > 0
    if not is_packed.any():
        raise RunError(f"at least one {name} image must be readable, but none is. Hint: choose another source.")
    lengths = np.diff(names.ends, prepend=0)
    arrays = {
        "records": records[is_packed],
        "targets": images.targets[is_packed].astype("<i8"),
        "names": names.text[np.repeat(is_packed, lengths)],
        "name_ends": np.cumsum(lengths[is_packed]).astype("<i8"),
    }
    if images.weights is not None:
        arrays[WEIGHTS] = images.weights[is_packed].astype("<f4")
    return Split(
        int(is_packed.sum()),
        name == "train",
        files,
        {key: _save(folder / f"{name}.{key}.npy", array) for key, array in arrays.items()},
        source_bytes,
        [{"name": names[index], "reason": reason} for index, reason in sorted(left_out.items())],
    )


def _write(
    path: Path,
    images: Images,
    number: int,
    indices: np.ndarray,
    encoded: Iterator[Result],
    bad_images: BadImages,
    count: Callable[[int], None],
) -> Shard:
    sha, position = hashlib.sha256(), 0
    shard = Shard(File(path.name, 0, ""), np.zeros(len(indices), RECORD))
    with path.open("wb") as file:
        for row, (index, result) in enumerate(zip(indices.tolist(), encoded, strict=False)):
            image: EncodedImage = result.value or EncodedImage(b"", reason=result.failure)
            count(image.source_bytes)
            if image.reason:
                shard.left_out[index] = image.reason
                bad_images.on_bad_images([(images.path(index), image.reason)])
                continue
            if image.ignored:
                shard.ignored[index] = image.ignored.value
            file.write(image.data)
            sha.update(image.data)
            crc32 = zlib.crc32(image.data)
            shard.records[row] = (position, len(image.data), number, crc32, image.height, image.width)
            position += len(image.data)
            shard.source_bytes += image.source_bytes
        file.flush()
        os.fsync(file.fileno())
    shard.file = File(path.name, position, sha.hexdigest())
    return shard


def _save(path: Path, array: np.ndarray) -> File:
    np.save(path, array)
    return File(path.name, path.stat().st_size, sha256(path))
