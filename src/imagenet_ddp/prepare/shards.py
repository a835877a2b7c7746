"""Plan and write the shards of a pack. The same source and options always result in the same plan. Each shard is either
complete or absent, and a complete shard is not written again."""

import hashlib
import io
import itertools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.data.sources.base import Images, Names, Source
from imagenet_ddp.data.sources.download import size_of
from imagenet_ddp.data.sources.files import FileImages
from imagenet_ddp.data.sources.listing import map_concurrently
from imagenet_ddp.data.sources.manifest import RECORD, WORK, File, PackOptions
from imagenet_ddp.data.sources.packed import PackedImages
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.prepare.disk_space import require_free_space
from imagenet_ddp.prepare.encode import EncodedImage, encode_image
from imagenet_ddp.system.atomic_write import atomic_write
from imagenet_ddp.system.text import MIB, count_noun

PART = "shard.part"  # growing file in WORK with the shard that is being written
NUM_SAMPLES = 64  # images packed beforehand to estimate the size
_CHUNK = 1_000  # files that a thread checks, one after the other


@dataclass(frozen=True)
class SourceSplit:
    """One split of a source. names: relative to the source's folder, whose path must not affect the packed bytes.
    states: int64 (N, 2), each file's size in bytes (-1 if it is missing) and mtime in ns; the checksums of packed
    images; zeros for other images."""

    images: Images
    names: Names
    states: np.ndarray


@dataclass(frozen=True)
class Shard:
    """A planned shard. number: its position in the split. indices: positions of its images in the source, ascending.
    state: digest of the states of the images' files."""

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


def source_splits(source: Source, data: Mapping[str, Any]) -> dict[str, SourceSplit]:
    """Return the splits that the source has: train, val or both. data: the resolved data.* keys."""
    return {
        name: SourceSplit(images, _names(images, data), _states(images))
        for name, images in (("train", source.train), ("val", source.val))
        if images is not None
    }


def _names(images: Images, data: Mapping[str, Any]) -> Names:
    if isinstance(images, PackedImages):
        return images.names
    prefix = f"{images.location or data['root']}{os.sep}"
    return Names.of(images.path(index).removeprefix(prefix) for index in range(len(images)))


def _states(images: Images) -> np.ndarray:
    if isinstance(images, PackedImages):
        return np.array([(images.record(index).crc32, 0) for index in range(len(images))], dtype=np.int64)
    if not isinstance(images, FileImages):
        return np.zeros((len(images), 2), dtype=np.int64)

    def state(index: int) -> tuple[int, int]:
        try:
            stat = os.stat(images.path(index))  # noqa: PTH116 (hot loop)
        except OSError:
            return -1, 0
        return stat.st_size, stat.st_mtime_ns

    chunks = [range(first, min(first + _CHUNK, len(images))) for first in range(0, len(images), _CHUNK)]
    found = map_concurrently(lambda chunk: [state(index) for index in chunk], chunks)
    return np.array(list(itertools.chain.from_iterable(found)), dtype=np.int64).reshape(-1, 2)


def validate_unchanged(splits: Mapping[str, SourceSplit]) -> None:
    """Raise RunError if a file changed after its state was read: the pack would mix old and new images, and once it is
    finished, only sizes are compared."""
    changed: list[str] = []
    for name, split in splits.items():
        old, new = split.states, _states(split.images)
        differ = (old != new).any(axis=1) & (old[:, 0] >= 0) & (new[:, 0] >= 0)
        changed += [f"{name}/{split.names[index]}" for index in np.flatnonzero(differ).tolist()]
    if changed:
        raise RunError(
            f"{count_noun(len(changed), 'image')} changed during packing; the first was {changed[0]}. Hint: run the "
            "same command again, which packs only the shards with changed images again."
        )


def fingerprint(source: Source, splits: Mapping[str, SourceSplit]) -> str:
    """Return the SHA-256 of classes, names, targets and weights."""
    sha = hashlib.sha256(json.dumps([source.classes, source.labels]).encode())
    for name, split in splits.items():
        images = split.images
        sha.update(f"{name} {len(images)}".encode())
        for array in (split.names.text, split.names.ends, images.targets.astype("<i8")):
            sha.update(array.tobytes())
        if images.weights is not None:
            sha.update(images.weights.astype("<f4").tobytes())
    return sha.hexdigest()


def with_sizes(fingerprint: str, splits: Mapping[str, SourceSplit]) -> str:
    """Return the SHA-256 of a fingerprint and the sizes of the files. Their times are not stored in a pack."""
    sha = hashlib.sha256(fingerprint.encode())
    for split in splits.values():
        sha.update(split.states[:, 0].astype("<i8").tobytes())
    return sha.hexdigest()


def validate_same(found: Mapping[str, Any], wanted: PackOptions, out: Path, what: str) -> None:
    """Raise ConfigError if `out` was made with other options. found: the stored options. what: noun for `out`."""
    words = {"source": "other images", "encoder": f"other libraries ({found.get('encoder')}; now {wanted.encoder})"}
    different = [
        words.get(name, f"{name}={found.get(name)} instead of {value}")
        for name, value in asdict(wanted).items()
        if found.get(name) != value
    ]
    if different:
        raise ConfigError(
            f"{out} must be {what} of these images and options, but was made with {', '.join(different)}. Hint: type "
            "the options it was made with, remove the folder, or set out=FOLDER to another folder."
        )


def plan_shards(out: Path, wanted: PackOptions, splits: Mapping[str, SourceSplit]) -> list[Shard]:
    """Distribute the images over shards. Their mean size is stored in WORK, so that a resumed pack makes the same
    plan."""
    file = out / WORK / "plan.json"
    if file.exists():
        plain = json.loads(file.read_bytes())
        validate_same(plain.get("options", {}), wanted, out, "an unfinished pack")
        mean_bytes = plain["mean_bytes"]
    else:
        mean_bytes = {name: _mean_bytes(split.images, wanted) for name, split in splits.items()}
    plans = []
    for name, split in splits.items():
        per_shard = max(1, int(wanted.shard_mib * MIB / max(mean_bytes[name], 1)))
        plans += divide(name, split.states, per_shard, shuffle=name == "train")
    need = sum(  # a shard that is written again replaces its file
        mean_bytes[shard.split] * len(shard.indices) - size_of(out / shard.file)
        for shard in plans
        if not find(out, shard)
    )
    require_free_space(out, need, ", or set a smaller prepare.short_side")
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        save(file, json.dumps({"options": asdict(wanted), "mean_bytes": mean_bytes}).encode())
    return plans


def _mean_bytes(images: Images, options: PackOptions) -> float:
    """Estimate the mean size of a packed image in bytes, always from the same sample."""
    sample = np.unique(np.linspace(0, len(images) - 1, min(NUM_SAMPLES, len(images))).astype(np.int64))
    sizes = [len(encode_image(images, index, options).data) for index in sample.tolist()]
    return float(np.mean([size for size in sizes if size] or [0]))


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
        plain = json.loads(_summary_file(out, shard).read_bytes())
        written = WrittenShard(File(**plain["file"]), plain["source_bytes"], [tuple(image) for image in plain["bad"]])
        is_complete = size_of(out / shard.file) == written.file.num_bytes and _records_file(out, shard).is_file()
        return written if is_complete and plain["state"] == shard.state else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def records(out: Path, shard: Shard) -> np.ndarray:
    """Return the records of a finished shard, RECORD (len(shard.indices),)."""
    return np.load(_records_file(out, shard))


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
