"""Shards of a pack as they are written: each is whole or not there, and one that is whole is not made again."""

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from imagenet_ddp.data.sources.packed.manifest import RECORD, WORK, File
from imagenet_ddp.prepare.pack.encode import Packed
from imagenet_ddp.system.atomic_write import atomic_write

PART = "shard.part"  # in WORK: the shard being written; it grows


@dataclass(frozen=True)
class Shard:
    """number: within its split. indices: the images it holds, by their number in the source, ascending."""

    split: str
    number: int
    indices: np.ndarray

    @property
    def file(self) -> str:
        return f"{self.split}-{self.number:05}.bin"


@dataclass(frozen=True)
class Written:
    """What is remembered of a shard until the pack is finished. bad: position in indices, reason."""

    file: File
    source_bytes: int
    bad: list[tuple[int, str]]


def divide(split: str, num_images: int, per_shard: int, *, shuffle: bool) -> list[Shard]:
    """Which images lie together. Shuffled, so that a few shards are a fair sample of all classes; and always the same,
    so that the bytes are: RandomState's stream is frozen (NEP 19)."""
    order = np.random.RandomState(0).permutation(num_images) if shuffle else np.arange(num_images)
    return [
        Shard(split, number, np.sort(order[first : first + per_shard]))
        for number, first in enumerate(range(0, num_images, per_shard))
    ]


def write(out: Path, shard: Shard, packed: Iterable[Packed], *, keep_bad: bool) -> Written:
    """Images that cannot be read take no room; with any of them and not keep_bad, the shard is not finished."""
    part, sha, records = out / WORK / PART, hashlib.sha256(), np.zeros(len(shard.indices), RECORD)
    position, source_bytes, bad = 0, 0, []
    with part.open("wb") as file:
        for number, image in enumerate(packed):
            if image.reason:
                bad.append((number, image.reason))
                continue
            file.write(image.data)
            sha.update(image.data)
            row = (position, len(image.data), shard.number, image.crc32, image.height, image.width)
            records[number] = row
            position += len(image.data)
            source_bytes += image.source_bytes
        file.flush()
        os.fsync(file.fileno())
    written = Written(File(shard.file, position, sha.hexdigest()), source_bytes, bad)
    if bad and not keep_bad:
        part.unlink()
        return written
    save(_index(out, shard), npy(records))
    save(_note(out, shard), json.dumps(asdict(written)).encode())
    part.replace(out / shard.file)
    return written


def finished(out: Path, shard: Shard) -> Written | None:
    """What an earlier run wrote; None: nothing that can be used."""
    try:
        plain = json.loads(_note(out, shard).read_bytes())
        written = Written(
            File(**plain["file"]), plain["source_bytes"], [(number, reason) for number, reason in plain["bad"]]
        )
        is_whole = (out / shard.file).stat().st_size == written.file.num_bytes and _index(out, shard).is_file()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return written if is_whole else None


def index(out: Path, shard: Shard) -> np.ndarray:
    """RECORD (len(shard.indices),) of a finished shard."""
    return np.load(_index(out, shard))


def _note(out: Path, shard: Shard) -> Path:
    return out / WORK / f"{shard.split}-{shard.number:05}.json"


def _index(out: Path, shard: Shard) -> Path:
    return out / WORK / f"{shard.split}-{shard.number:05}.npy"


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def bad_csv(rows: Iterable[tuple[str, str]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([("path", "reason"), *rows])
    return buffer.getvalue().encode(errors="surrogateescape")


def save(path: Path, data: bytes) -> File:
    """Whole or not at all, and on the disk when this returns."""
    # one name, because a kill must leave nothing in a pack that the next run does not overwrite
    atomic_write(path, data, sync=True, draft=path.with_name(f"{path.name}.part"))
    return File(path.name, len(data), hashlib.sha256(data).hexdigest())
