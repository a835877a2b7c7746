"""Run prepare=pack and prepare=import: write the images of any source, or of archives, in packed form.

The bytes depend only on the source and the options, because the images of each shard are chosen before the first one is
encoded. All files are written in a folder inside `out`, then moved, packed.json last. A killed command goes on after
its finished shards.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from imagenet_ddp.cli.overrides import quoted
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.ignored_parts import IgnoredParts
from imagenet_ddp.data.sources.base import Images, Names, Source
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.sources.pack_format import (
    FILE,
    WORK,
    Manifest,
    PackOptions,
    read_manifest,
    wrong_sizes,
)
from imagenet_ddp.data.sources.packed import PackedImages
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.data.sources.validation_split import file_size, map_files
from imagenet_ddp.data.unreadable_images import BadImages
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.prepare.archives.archive_images import ArchiveImages
from imagenet_ddp.prepare.archives.checksums import CACHE, SUMS, require_unchanged, sums_of
from imagenet_ddp.prepare.encode import encode_image, encoder_versions
from imagenet_ddp.prepare.options import Plan, require_free_space
from imagenet_ddp.prepare.shards import Shard, divide, shard_name, write_split
from imagenet_ddp.prepare.worker_pool import Result, process_images
from imagenet_ddp.runs.disk_errors import disk_errors_as_run_error
from imagenet_ddp.system.bounded_wait import lock_or_wait
from imagenet_ddp.system.console import Progress, print_message
from imagenet_ddp.system.files import atomic_write
from imagenet_ddp.system.table_files import table_bytes
from imagenet_ddp.system.text import MIB, duration

LOCK = ".lock"
BAD = "bad_images.csv"
CLASSES = "classes.csv"  # of archives
STATE = ".state.json"  # what the folder of drafts is made of
NUM_SAMPLES = 64  # images packed beforehand to estimate the size
AHEAD = 8  # images that each process encodes in advance


def run(plan: Plan) -> int:
    """Pack the images and return exit code 0. Raises ConfigError for refused options, RunError on failure."""
    out = plan.out.absolute()
    if out.is_dir() and not {FILE, WORK} & (names := {entry.name for entry in out.iterdir()}) and names - {LOCK}:
        what = f"out must be a new or an empty folder, but {out} is not"
        raise ConfigError(Mistake(what, ("out",), (setting("out=FOLDER", aim="to another one"),)))
    with disk_errors_as_run_error(out):
        out.mkdir(parents=True, exist_ok=True)
        with lock_or_wait(out / LOCK):
            _run(plan, out)
    return 0


def _run(plan: Plan, out: Path) -> None:
    begin_s, data = time.monotonic(), plan.config.data
    source = open_source(data, plan.config.seed, found=plan.scan)
    for line in (*source.notes, *source.doubts) if plan.archives else ():
        print_message(line)
    images = source.splits
    names = {name: _names(split, data.root) for name, split in images.items()}
    options = PackOptions(
        plan.config.prepare.form,
        plan.config.prepare.short_side,
        plan.config.prepare.quality,
        data.exif_orientation,
        plan.config.prepare.shard_mib,
        encoder_versions(data.decoder),
        _fingerprint(source, images, names),
    )
    if (out / FILE).exists():
        print_message(f"{out} is already packed: {_counts(_existing_pack(out, options))}.", sys.stdout)
        return
    draft, encode = out / WORK, partial(_encode, plan, options, images)
    per_shard = _images_per_shard(encode, images, options, draft)
    sums = sums_of(plan.archives, Path(str(plan.config.archive_dir)), draft) if plan.archives else b""
    state = {**asdict(options), "per_shard": per_shard, "archives": hashlib.sha256(sums).hexdigest()}
    _begin(draft, json.dumps(state))
    shards = {
        name: divide(len(split), per_shard[name], shuffle=name == "train", parts=getattr(split, "parts", None))
        for name, split in images.items()
    }
    finished = {name: _finished(draft, name, len(of_split)) for name, of_split in shards.items()}
    todo = {
        name: [indices for number, indices in enumerate(of_split) if number not in finished[name]]
        for name, of_split in shards.items()
    }
    total = sum(map(len, images.values()))
    reading = _Reading(Progress(plan.config.prepare.name, total, "images"))
    if num_there := total - sum(len(indices) for of_split in todo.values() for indices in of_split):
        print_message(f"{out}: {num_there:,} of {total:,} images are packed already.")
        reading.progress.add(num_there)
    hint = "look at these files in the archive, or copy it again" if plan.archives else None
    bad_images, ignored = BadImages(data, total, say=print_message, hint=hint), IgnoredParts(print_message)
    encoded = encode({name: np.concatenate([[], *of_split]).astype(np.int64) for name, of_split in todo.items()})
    with contextlib.closing(reading.progress), contextlib.closing(encoded):
        splits = {
            name: write_split(
                draft, name, (split, names[name]), shards[name], finished[name], encoded, bad_images, ignored,
                reading.count,
            )
            for name, split in images.items()
        }  # fmt: skip
    manifest = Manifest(**asdict(options), classes=source.classes, labels=source.labels, splits=splits)
    if bad := bad_images.board.all():
        (draft / BAD).write_bytes(table_bytes(("path", "reason"), bad, plan.config.csv_delimiter))
    if plan.archives:
        require_unchanged(plan.archives, Path(str(plan.config.archive_dir)), draft)
        (draft / SUMS).write_bytes(sums)
        (draft / CLASSES).write_bytes(_class_table(source, plan.config.csv_delimiter))
    (draft / FILE).write_bytes(manifest.dump())
    _publish(draft, out)
    before = sum(split.source_bytes for split in splits.values())
    after = sum(path.stat().st_size for path in out.iterdir())
    for line in ignored.lines(images):
        print_message(line)
    taken_s = time.monotonic() - begin_s
    print_message(
        f"{out}: {_counts(manifest)} packed, {before / MIB:,.1f} MiB before, {after / MIB:,.1f} MiB after, in "
        f"{duration(taken_s)} ({taken_s:.1f} s{reading.speed()} read). "
        f"Train from it with data=packed {quoted(f'data.root={out}')}",
        sys.stdout,
    )


class _Reading:
    """Count the images that are packed, and the bytes that are read of them, for the line of progress."""

    def __init__(self, progress: Progress):
        self.progress, self._num_bytes, self._begin_s = progress, 0, time.monotonic()
        progress.more = self.speed

    def count(self, num_bytes: int) -> None:
        """Count an image. num_bytes: its size in the source."""
        self._num_bytes += num_bytes
        self.progress.add(1)

    def speed(self) -> str:
        return f", {self._num_bytes / 1e6 / max(time.monotonic() - self._begin_s, 1e-3):,.1f} MB/s"


def _encode(
    plan: Plan, options: PackOptions, images: Mapping[str, Images], chosen: Mapping[str, np.ndarray]
) -> Generator[Result]:
    """Yield the encoded images in order. chosen: their positions in each split."""
    tasks = (
        (name, index, *_read_here(images[name], index))
        for name, indices in chosen.items()
        for index in indices.tolist()
    )
    return process_images(
        partial(encode_image, options=options), images, tasks,
        plan.num_workers, plan.config.prepare.timeout_s, AHEAD * plan.num_workers,
    )  # fmt: skip


def _images_per_shard(
    encode: Callable[[Mapping[str, np.ndarray]], Iterator[Result]],
    images: Mapping[str, Images],
    options: PackOptions,
    draft: Path,
) -> dict[str, int]:
    """Make the folder of drafts, and return how many images of each split a shard has, by the mean size of some. Raises
    ConfigError if the disk has no room for all."""
    mean_bytes = _mean_bytes(encode, images)
    draft.mkdir(exist_ok=True)
    there = sum(path.stat().st_size for path in draft.iterdir())  # kept, or removed
    num_bytes = sum(mean_bytes[name] * len(split) for name, split in images.items())
    require_free_space(draft.parent, num_bytes - there, ", or set a smaller prepare.short_side")
    return {name: max(1, int(options.shard_mib * MIB / max(mean, 1))) for name, mean in mean_bytes.items()}


def _existing_pack(out: Path, options: PackOptions) -> Manifest:
    """Return the manifest of the pack in `out`. Raises ConfigError unless it is a whole pack with these options."""
    manifest = read_manifest(out)
    has = {name: getattr(manifest, name) for name in asdict(options)}
    is_whole = not any(wrong_sizes(out, split) for split in manifest.splits.values())
    if not is_whole or has | {"encoder": options.encoder} != asdict(options):
        raise ConfigError(
            f"{out} must be a whole pack of these images and options, but is a damaged or another one. Hint: remove "
            "the folder, or set out=FOLDER to another folder."
        )
    return manifest


def _mean_bytes(
    encode: Callable[[Mapping[str, np.ndarray]], Iterator[Result]], images: Mapping[str, Images]
) -> dict[str, float]:
    """Return the mean size of an encoded image of each split, estimated from NUM_SAMPLES images."""
    sample = {
        name: np.unique(np.linspace(0, len(split) - 1, min(NUM_SAMPLES, len(split))).astype(np.int64))
        for name, split in images.items()
    }
    sizes: dict[str, list[int]] = {name: [] for name in images}
    for result in encode(sample):
        if result.value and result.value.data:
            sizes[result.split].append(len(result.value.data))
    return {name: sum(of_split) / max(len(of_split), 1) for name, of_split in sizes.items()}


def _read_here(images: Images, index: int) -> tuple[bytes, ...]:
    """Return (the bytes of an image,) if this process reads them for those that encode, else ()."""
    if isinstance(images, ArchiveImages) and images.parts is not None:
        with contextlib.suppress(UnreadableImage):  # the other process finds the same
            return (images.encoded(index),)
    return ()


def _begin(draft: Path, state: str) -> None:
    """Empty the folder of drafts if they are of another source, or made with other options."""
    file = draft / STATE
    if not (file.is_file() and file.read_text() == state):
        for path in draft.iterdir():
            if path.name != CACHE:  # the checksums of the archives do not depend on the options
                path.unlink()
        atomic_write(file, state)


def _finished(draft: Path, split: str, num_shards: int) -> dict[int, Shard]:
    found = {number: Shard.load(draft, shard_name(split, number)) for number in range(num_shards)}
    return {number: shard for number, shard in found.items() if shard is not None}


def _class_table(source: Source, delimiter: str) -> bytes:
    """Return a table of the number of images of each class in the archives."""
    size = len(source.classes)
    splits = source.train, source.val
    counts = [[0] * size if images is None else images.num_of_each(size).tolist() for images in splits]
    rows = zip(source.classes, source.labels, *counts, strict=True)
    return table_bytes(("class", "label", "train", "val"), rows, delimiter)


def _publish(draft: Path, out: Path) -> None:
    """Move the files to their final names, FILE last, and remove the folder of drafts."""
    os.sync()  # a power cut must not leave empty files under their final names
    for path in sorted(draft.iterdir(), key=lambda path: path.name == FILE):
        if not path.name.startswith("."):  # the records of the finished shards are not needed any more
            path.replace(out / path.name)
    shutil.rmtree(draft)


def _names(images: Images, root: str | None) -> Names:
    """Return the names relative to the source's folder, whose path must not affect the packed bytes."""
    if isinstance(images, PackedImages | ArchiveImages):
        return images.names
    prefix = f"{images.location or root}{os.sep}"
    return Names.of(images.path(index).removeprefix(prefix) for index in range(len(images)))


def _fingerprint(source: Source, splits: Mapping[str, Images], names: Mapping[str, Names]) -> str:
    """Return the SHA-256 of classes, names, targets, weights, and the sizes of image files."""
    sha = hashlib.sha256(json.dumps([source.classes, source.labels]).encode())
    for name, images in splits.items():
        sha.update(f"{name} {len(images)}".encode())
        for array in (names[name].text, names[name].ends, images.targets.astype("<i8")):
            sha.update(array.tobytes())
        if images.weights is not None:
            sha.update(images.weights.astype("<f4").tobytes())
        if isinstance(images, ArchiveImages):
            sha.update(images.sizes().astype("<i8").tobytes())
        if isinstance(images, FileImages):
            sizes = map_files(file_size, images.location, names[name], range(len(images)), "Reading file sizes")
            sha.update(np.array(sizes, "<i8").tobytes())
    return sha.hexdigest()


def _counts(manifest: Manifest) -> str:
    found = [f"{split.num_images:,} {name}" for name, split in manifest.splits.items()]
    left_out = sum(len(split.left_out) for split in manifest.splits.values())
    return f"{' and '.join(found)} images" + (f" ({left_out} left out)" if left_out else "")
