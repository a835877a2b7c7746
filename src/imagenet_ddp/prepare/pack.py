"""Run prepare=pack: write the images of any source in packed form.

The bytes depend only on the source and the options, because the images of each shard are chosen before the first one is
encoded. All files are written in a folder inside `out`, then moved, packed.json last. A killed pack starts again.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from imagenet_ddp.cli.overrides import quoted
from imagenet_ddp.data.ignored_parts import IgnoredParts
from imagenet_ddp.data.sources.base import Images, Names, Source
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.sources.pack_format import (
    FILE,
    RECORD,
    WEIGHTS,
    WORK,
    File,
    Manifest,
    PackOptions,
    Split,
    read_manifest,
    wrong_sizes,
)
from imagenet_ddp.data.sources.packed import PackedImages
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.data.sources.validation_split import file_size, map_files
from imagenet_ddp.data.unreadable_images import BadImages
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.prepare.encode import EncodedImage, encode_image, encoder_versions
from imagenet_ddp.prepare.options import Plan, require_free_space
from imagenet_ddp.prepare.worker_pool import Result, process_images
from imagenet_ddp.runs.folder import disk_errors_as_run_error
from imagenet_ddp.system.bounded_wait import lock_or_wait
from imagenet_ddp.system.console import Progress, print_message
from imagenet_ddp.system.files import sha256
from imagenet_ddp.system.table_files import table_bytes
from imagenet_ddp.system.text import MIB, duration

LOCK = ".lock"
BAD = "bad_images.csv"
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
    images = {name: split for name, split in (("train", source.train), ("val", source.val)) if split is not None}
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
    draft = out / WORK
    shutil.rmtree(draft, ignore_errors=True)  # before the free space is measured

    def encode(chosen: Mapping[str, np.ndarray]) -> Generator[Result]:
        tasks = ((name, index) for name, indices in chosen.items() for index in indices.tolist())
        return process_images(
            partial(encode_image, options=options), images, tasks,
            plan.num_workers, plan.config.prepare.timeout_s, AHEAD * plan.num_workers,
        )  # fmt: skip

    mean_bytes = _mean_bytes(encode, images)
    num_bytes = sum(mean_bytes[name] * len(split) for name, split in images.items())
    require_free_space(out, num_bytes, ", or set a smaller prepare.short_side")
    draft.mkdir()
    per_shard = {name: max(1, int(options.shard_mib * MIB / max(mean, 1))) for name, mean in mean_bytes.items()}
    shards = {name: divide(len(split), per_shard[name], shuffle=name == "train") for name, split in images.items()}
    total = sum(map(len, images.values()))
    progress, bad_images = Progress("pack", total, "images"), BadImages(data, total, say=print_message)
    ignored = IgnoredParts(print_message)
    encoded = encode({name: np.concatenate(of_split) for name, of_split in shards.items()})
    with contextlib.closing(progress), contextlib.closing(encoded):
        splits = {
            name: _write_split(draft, name, (split, names[name]), shards[name], encoded, bad_images, ignored, progress)
            for name, split in images.items()
        }
    manifest = Manifest(**asdict(options), classes=source.classes, labels=source.labels, splits=splits)
    if bad := bad_images.board.all():
        (draft / BAD).write_bytes(table_bytes(("path", "reason"), bad, plan.config.csv_delimiter))
    (draft / FILE).write_bytes(manifest.dump())
    _publish(draft, out)
    before = sum(split.source_bytes for split in splits.values())
    after = sum(path.stat().st_size for path in out.iterdir())
    for line in ignored.lines(images):
        print_message(line)
    taken_s = time.monotonic() - begin_s
    print_message(
        f"{out}: {_counts(manifest)} packed, {before / MIB:,.1f} MiB before, {after / MIB:,.1f} MiB after, in "
        f"{duration(taken_s)} ({taken_s:.1f} s). Train from it with data=packed {quoted(f'data.root={out}')}",
        sys.stdout,
    )


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


def _publish(draft: Path, out: Path) -> None:
    """Move the files to their final names, FILE last, and remove the folder of drafts."""
    os.sync()  # a power cut must not leave empty files under their final names
    for path in sorted(draft.iterdir(), key=lambda path: path.name == FILE):
        path.replace(out / path.name)
    draft.rmdir()


def _names(images: Images, root: str | None) -> Names:
    """Return the names relative to the source's folder, whose path must not affect the packed bytes."""
    if isinstance(images, PackedImages):
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
        if isinstance(images, FileImages):
            sizes = map_files(file_size, images.location, names[name], range(len(images)), "Reading file sizes")
            sha.update(np.array(sizes, "<i8").tobytes())
    return sha.hexdigest()


def divide(num_images: int, per_shard: int, *, shuffle: bool) -> list[np.ndarray]:
    """Return the positions of the images in each shard. Shuffling makes a few shards a fair sample of all classes. The
    order is always the same, because RandomState's stream is frozen (NEP 19)."""
    order = np.random.RandomState(0).permutation(num_images) if shuffle else np.arange(num_images)
    return [np.sort(order[first : first + per_shard]) for first in range(0, num_images, per_shard)]


def _write_split(
    folder: Path,
    name: str,
    source: tuple[Images, Names],
    shards: list[np.ndarray],
    encoded: Iterator[Result],
    bad_images: BadImages,
    ignored: IgnoredParts,
    progress: Progress,
) -> Split:
    """Write the shards and the index of a split. Raises RunError if too many images, or all, cannot be read."""
    (images, names), source_bytes, files = source, 0, []
    records, left_out = np.zeros(len(images), RECORD), []
    for number, indices in enumerate(shards):
        path, sha, position = folder / f"{name}-{number:05}.bin", hashlib.sha256(), 0
        with path.open("wb") as file:
            for index, result in zip(indices.tolist(), encoded, strict=False):
                progress.add(1)
                image: EncodedImage = result.value or EncodedImage(b"", reason=result.failure)
                if image.reason:
                    left_out.append((index, image.reason))
                    bad_images.on_bad_images([(images.path(index), image.reason)])
                    continue
                if image.ignored:
                    ignored.add(name, images, {index: image.ignored.value})
                file.write(image.data)
                sha.update(image.data)
                crc32 = zlib.crc32(image.data)
                records[index] = (position, len(image.data), number, crc32, image.height, image.width)
                position += len(image.data)
                source_bytes += image.source_bytes
        files.append(File(path.name, position, sha.hexdigest()))
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
        [{"name": names[index], "reason": reason} for index, reason in sorted(left_out)],
    )


def _save(path: Path, array: np.ndarray) -> File:
    np.save(path, array)
    return File(path.name, path.stat().st_size, sha256(path))


def _counts(manifest: Manifest) -> str:
    found = [f"{split.num_images:,} {name}" for name, split in manifest.splits.items()]
    left_out = sum(len(split.left_out) for split in manifest.splits.values())
    return f"{' and '.join(found)} images" + (f" ({left_out} left out)" if left_out else "")
