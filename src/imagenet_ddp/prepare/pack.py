"""Run prepare=pack: write the images of any source in packed form.

The bytes depend only on the source and the options. The distribution of images over shards is fixed before the first
shard is packed, each shard is written in one go, and packed.json is written last. A killed pack therefore resumes at
the first missing shard and ends with the same bytes.
"""

import contextlib
import itertools
import os
import shutil
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from imagenet_ddp.cli.text_values import quoted
from imagenet_ddp.data.bad_images import max_bad_images
from imagenet_ddp.data.sources import manifest as manifests
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.manifest import FILE, WORK, Manifest, PackOptions, Split
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.prepare import shards
from imagenet_ddp.prepare.disk_space import explain_disk_errors
from imagenet_ddp.prepare.encode import EncodedImage, encode_image, encoder_versions
from imagenet_ddp.prepare.options import Plan
from imagenet_ddp.prepare.shards import Shard, SourceSplit, WrittenShard
from imagenet_ddp.prepare.worker_pool import Limits, process_images
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.csv_file import csv_bytes
from imagenet_ddp.system.file_lock import lock_or_wait
from imagenet_ddp.system.progress_bar import Progress
from imagenet_ddp.system.text import MIB, count_noun, duration, shorten_list

LOCK = ".lock"
BAD = "bad_images.csv"
MAX_PRINTED = 20  # bad images named in a message
TIMEOUT_S = 1800.0  # limit for one image, after which its disk is considered to hang
WINDOW = 12  # images per process that may be encoded before the first of them is written, which bounds the memory


def run(plan: Plan) -> int:
    """Pack the images and return exit code 0. Raises ConfigError for refused options, RunError on failure."""
    out = plan.out.absolute()
    if out.is_dir() and not {FILE, WORK} & (names := {entry.name for entry in out.iterdir()}) and names - {LOCK}:
        raise ConfigError(
            f"out must be a new folder, an empty folder or an unfinished pack, but {out} contains "
            f"{', '.join(sorted(names)[:5])}. Hint: set out=FOLDER to another folder."
        )
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small images take half the time with one thread
    try:
        with explain_disk_errors(out):
            out.mkdir(parents=True, exist_ok=True)
            with lock_or_wait(out / LOCK):
                _run(plan, out)
    finally:
        torch.set_num_threads(num_threads)
    return 0


def _run(plan: Plan, out: Path) -> None:
    begin_s, data, options = time.monotonic(), plan.config["data"], plan.options
    source = open_source(data, plan.config["seed"], os.environ)
    splits = shards.source_splits(source, data)
    wanted = PackOptions(
        options["form"],
        options["short_side"],
        options["quality"],
        data["exif_orientation"],
        options["shard_mib"],
        encoder_versions(data["decoder"]),
        shards.fingerprint(source, splits),
    )
    # only a finished pack compares sizes, because images may be repaired until then
    with_source_sizes = replace(wanted, source=shards.with_sizes(wanted.source, splits))
    if (out / FILE).exists():
        manifest = manifests.read(out)
        shards.validate_same(vars(manifest), with_source_sizes, out, "a pack")
        wrong = [text for split in manifest.splits.values() for text in manifests.wrong_sizes(out, split)]
        if not wrong:
            shutil.rmtree(out / WORK, ignore_errors=True)  # left by a run killed after it wrote packed.json
            print_message(f"{out} is already packed: {_counts(manifest)}.", sys.stdout)
            return
        print_message(f"Packing the images again, because {shorten_list(wrong)}.")
        (out / WORK).mkdir(exist_ok=True)  # without packed.json, it marks the folder as an unfinished pack
        (out / FILE).unlink()
    plans = shards.plan_shards(out, wanted, splits)
    written = _write_shards(plan, out, plans, splits, wanted)
    shards.validate_unchanged(splits)
    bad = [
        (splits[shard.split].images.path(index), reason) for shard in plans for index, reason in written[shard.file].bad
    ]
    _validate_bad_images(out, bad, data, sum(len(split.images) for split in splits.values()))
    manifest = Manifest(
        **asdict(with_source_sizes),
        classes=source.classes,
        labels=source.labels,
        splits={
            name: _write_index(out, name, split, [shard for shard in plans if shard.split == name], written)
            for name, split in splits.items()
        },
    )
    shards.save(out / FILE, manifest.dump())
    shutil.rmtree(out / WORK)
    before = sum(split.source_bytes for split in manifest.splits.values())
    after = sum(path.stat().st_size for path in out.iterdir())
    taken_s = time.monotonic() - begin_s
    print_message(
        f"{out}: {_counts(manifest)} packed, {before / MIB:,.1f} MiB before, {after / MIB:,.1f} MiB after, in "
        f"{duration(taken_s)} ({taken_s:.1f} s). Train from it with data=packed {quoted(f'data.root={out}')}",
        sys.stdout,
    )


def _write_shards(
    plan: Plan, out: Path, plans: list[Shard], splits: Mapping[str, SourceSplit], options: PackOptions
) -> dict[str, WrittenShard]:
    """Write the shards that no earlier run has finished. Return file name -> WrittenShard of all shards."""
    keep_bad = plan.config["data"]["on_bad_image"] == "skip"
    progress = Progress("pack", sum(len(shard.indices) for shard in plans), "images")
    written: dict[str, WrittenShard] = {}
    for shard in plans:
        done = shards.find(out, shard)
        if done is not None and (keep_bad or not done.bad):
            written[shard.file] = done
            progress.add_earlier(len(shard.indices))
    todo = [shard for shard in plans if shard.file not in written]
    images = {name: split.images for name, split in splits.items()}
    tasks = ((shard.split, index) for shard in todo for index in shard.indices.tolist())
    with contextlib.closing(progress), contextlib.closing(_encode_all(images, tasks, options, plan)) as encoded:
        for shard in todo:
            of_shard = _counted(itertools.islice(encoded, len(shard.indices)), progress)
            written[shard.file] = shards.write(out, shard, of_shard, keep_bad=keep_bad)
    return written


def _counted(images: Iterable[EncodedImage], progress: Progress) -> Iterator[EncodedImage]:
    for image in images:
        yield image
        progress.add(1)


def _encode_all(
    images: Mapping[str, Images], tasks: Iterable[tuple[str, int]], options: PackOptions, plan: Plan
) -> Generator[EncodedImage, None, None]:
    """Yield the encoded images in the order of the tasks. With one worker, encode them in this process. Raises RunError
    if an image crashes or blocks its process."""
    if plan.num_workers == 1:
        yield from (encode_image(images[split], index, options) for split, index in tasks)
        return
    function, window = partial(encode_image, options=options), WINDOW * plan.num_workers
    with contextlib.closing(
        process_images(function, images, tasks, plan.num_workers, Limits(TIMEOUT_S), window)
    ) as results:
        for result in results:
            if result.failure:
                raise RunError(
                    f"{images[result.split].path(result.index)} cannot be packed: {result.failure}. Hint: check the "
                    "file and its disk, and free some memory (prepare.num_workers=1 needs the least). Then run the "
                    "same command again to resume."
                )
            yield result.value


def _validate_bad_images(out: Path, bad: list[tuple[str, str]], data: Mapping[str, Any], num_images: int) -> None:
    """Write the list of bad images. Raise RunError if there are any or, with data.on_bad_image=skip, too many."""
    finished_list = out / BAD
    if not bad:
        finished_list.unlink(missing_ok=True)
        return
    is_skip, limit = data["on_bad_image"] == "skip", data["bad_image_limit"]
    most = max_bad_images(limit, num_images)
    listed = finished_list if is_skip and len(bad) <= most else out / WORK / BAD
    shards.save(listed, csv_bytes(("path", "reason"), bad))
    lines = [f"  {name}: {reason}" for name, reason in bad[:MAX_PRINTED]]
    lines += [f"  ... and {len(bad) - MAX_PRINTED} more in {listed}"] if len(bad) > MAX_PRINTED else []
    text = f"{len(bad):,} of {count_noun(num_images, 'image')} cannot be read:\n" + "\n".join(lines)
    if not is_skip:
        raise RunError(
            f"{text}\nHint: replace the files, or set data.on_bad_image=skip to leave them out. Then run the same "
            "command again to resume."
        )
    if len(bad) > most:
        raise RunError(
            f"{text}\nThat is more than data.bad_image_limit={limit:g} allows ({count_noun(most, 'image')}). "
            f"Hint: check those files, or set data.bad_image_limit={2 * len(bad)}."
        )
    print_message(f"Left out: {text}")


def _write_index(
    out: Path, name: str, split: SourceSplit, plans: list[Shard], written: Mapping[str, WrittenShard]
) -> Split:
    """Merge the records of a split's shards in the order of the source, and write the split's index. Raises RunError if
    no image can be read."""
    images, names = split.images, split.names
    records = np.zeros(len(images), manifests.RECORD)
    left_out = []
    for shard in plans:
        records[shard.indices] = shards.records(out, shard)
        left_out += written[shard.file].bad
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
        arrays[manifests.WEIGHTS] = images.weights[is_packed].astype("<f4")
    return Split(
        int(is_packed.sum()),
        name == "train",
        [written[shard.file].file for shard in plans],
        {key: shards.save(out / f"{name}.{key}.npy", shards.npy(array)) for key, array in arrays.items()},
        sum(written[shard.file].source_bytes for shard in plans),
        [{"name": names[index], "reason": reason} for index, reason in sorted(left_out)],
    )


def _counts(manifest: Manifest) -> str:
    found = [f"{split.num_images:,} {name}" for name, split in manifest.splits.items()]
    left_out = sum(len(split.left_out) for split in manifest.splits.values())
    return f"{' and '.join(found)} images" + (f" ({left_out} left out)" if left_out else "")
