"""Write the shards of a pack. Each shard is either complete or absent, and a complete shard is not written again."""

import hashlib
import io
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.data.sources.manifest import RECORD, WORK, File
from imagenet_ddp.prepare.pack.encode import EncodedImage
from imagenet_ddp.system.atomic_write import atomic_write

PART = "shard.part"  # growing file in WORK with the shard that is being written


@dataclass(frozen=True)
class Shard:
    """A planned shard. number: its position in the split. indices: positions of its images in the source, ascending.
    state: digest of the states of the images' files (fingerprint.file_states)."""

    split: str
    number: int
    indices: np.ndarray
    state: str

    @property
    def name(self) -> str:
        return f"{self.split}-{self.number:05}"

    @property
    def file(self) -> str:
        return f"{self.name}.bin"


@dataclass(frozen=True)
class WrittenShard:
    """A finished shard. bad: (index in the source, reason) of each image that was left out."""

    file: File
    source_bytes: int
    bad: list[tuple[int, str]]


def divide(split: str, states: np.ndarray, per_shard: int, *, shuffle: bool) -> list[Shard]:
    """Distribute the images of a split over shards. Shuffling makes a few shards a fair sample of all classes. The
    order is always the same, because RandomState's stream is frozen (NEP 19). states: those of the split's files."""
    order = np.random.RandomState(0).permutation(len(states)) if shuffle else np.arange(len(states))
    parts = [np.sort(order[first : first + per_shard]) for first in range(0, len(states), per_shard)]
    digests = [hashlib.sha256(states[indices].astype("<i8").tobytes()).hexdigest() for indices in parts]
    return [Shard(split, number, *part) for number, part in enumerate(zip(parts, digests, strict=True))]


def write(out: Path, shard: Shard, encoded: Iterable[EncodedImage], *, keep_bad: bool) -> WrittenShard:
    """Write a shard without its bad images. If there are any and keep_bad is false, write no shard."""
    part, sha, records = out / WORK / PART, hashlib.sha256(), np.zeros(len(shard.indices), RECORD)
    position, source_bytes, bad = 0, 0, []
    with part.open("wb") as file:
        for number, image in enumerate(encoded):
            if image.reason:
                bad.append((int(shard.indices[number]), image.reason))
                continue
            file.write(image.data)
            sha.update(image.data)
            records[number] = (position, len(image.data), shard.number, image.crc32, image.height, image.width)
            position += len(image.data)
            source_bytes += image.source_bytes
        file.flush()
        os.fsync(file.fileno())
    written = WrittenShard(File(shard.file, position, sha.hexdigest()), source_bytes, bad)
    if bad and not keep_bad:
        part.unlink()
        return written
    # Delete an earlier run's summary first: if this run is killed before it saves its own, the shard has no summary and
    # does not count as finished.
    _summary_file(out, shard).unlink(missing_ok=True)
    save(_records_file(out, shard), npy(records))
    part.replace(out / shard.file)
    save(_summary_file(out, shard), json.dumps({**asdict(written), "state": shard.state}).encode())
    return written


def find(out: Path, shard: Shard) -> WrittenShard | None:
    """Return the shard if an earlier run wrote all of it and its images have not changed since, else None."""
    try:
        plain = _summary(out, shard)
        bad = [(index, reason) for index, reason in plain["bad"]]
        written = WrittenShard(File(**plain["file"]), plain["source_bytes"], bad)
        size = (out / shard.file).stat().st_size
        is_complete = size == written.file.num_bytes and _records_file(out, shard).is_file()
        return written if is_complete and plain["state"] == shard.state else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_outdated(out: Path, shard: Shard) -> bool:
    """Return whether the images have changed since an earlier run wrote the shard."""
    try:
        return _summary(out, shard)["state"] != shard.state
    except (OSError, ValueError, KeyError, TypeError):
        return False


def records(out: Path, shard: Shard) -> np.ndarray:
    """Return the records of a finished shard, RECORD (len(shard.indices),)."""
    return np.load(_records_file(out, shard))


def _summary(out: Path, shard: Shard) -> Any:
    return json.loads(_summary_file(out, shard).read_bytes())


def _summary_file(out: Path, shard: Shard) -> Path:
    return out / WORK / f"{shard.name}.json"


def _records_file(out: Path, shard: Shard) -> Path:
    return out / WORK / f"{shard.name}.npy"


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def save(path: Path, data: bytes) -> File:
    """Write a file atomically and sync it to the disk. Return its name, size and SHA-256."""
    # a fixed draft name, because a kill must leave nothing in a pack that the next run does not overwrite
    atomic_write(path, data, sync=True, draft=path.with_name(f"{path.name}.part"))
    return File(path.name, len(data), hashlib.sha256(data).hexdigest())
