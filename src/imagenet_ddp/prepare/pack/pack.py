"""prepare=pack: any source to the packed form.

The bytes are a function of source and options alone: how images fall to shards is known before the first is packed,
each shard is made in one go, and packed.json is written last. So a pack that was killed goes on with the first shard
that is missing, and ends as if nothing had happened.
"""

import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.data.bad_images import max_bad_images
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.download import MIB, lock_or_wait
from imagenet_ddp.data.sources.packed import manifest as manifests
from imagenet_ddp.data.sources.packed.manifest import FILE, WORK, Manifest, Split
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.prepare.options import Plan, option
from imagenet_ddp.prepare.pack import shards
from imagenet_ddp.prepare.pack.encode import Packing, encoder, pack
from imagenet_ddp.prepare.pack.fingerprint import Names, fingerprint, names_of, states_of, with_sizes
from imagenet_ddp.prepare.pack.resume import Unfinished
from imagenet_ddp.prepare.pack.shards import Shard, Written
from imagenet_ddp.prepare.pack.worker_pool import Pool
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.progress_bar import Progress
from imagenet_ddp.system.text import count_noun, duration

LOCK = ".lock"
SAMPLE = 64  # images that are packed beforehand to learn their size
BAD = "bad_images.csv"
SAID = 20  # bad images that are named on the screen


@dataclass(frozen=True)
class Asked:
    """What decides about the bytes. Two packs with the same are the same."""

    form: str
    short_side: int
    quality: int
    exif_orientation: bool
    shard_mib: int
    encoder: str
    source: str


def run(plan: Plan) -> int:
    """Exit code: 0 done, 1 failed. Raises ConfigError for what is refused."""
    assert plan.out is not None
    out = plan.out.absolute()
    if out.is_dir() and not {FILE, WORK} & (there := {entry.name for entry in out.iterdir()}) and there - {LOCK}:
        raise ConfigError(
            f"out must be a new folder, an empty one or an unfinished pack, but {out} holds "
            f"{', '.join(sorted(there)[:5])}. Hint: out=FOLDER."
        )
    try:
        (out / WORK).parent.mkdir(parents=True, exist_ok=True)
        with lock_or_wait(out / LOCK, out / WORK / shards.PART, print_message):
            _run(plan, out)
    except RunError as error:
        print_message(str(error))
        return 1
    except BrokenPipeError:  # who read what is printed has left
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            said = f"{out} must have room for all images, but the disk is full. Hint: make room"
        else:
            said = (
                f"{error.filename or out} must be readable, and {out} writable, but: "
                f"{error.strerror or error}. Hint: look at that disk and at who may write to it"
            )
        print_message(f"{said}, then type the same again: it goes on where it was.")
        return 1
    return 0


def _run(plan: Plan, out: Path) -> None:
    begin_s, data, options = time.monotonic(), plan.config["data"], plan.options
    source = open_source(data, plan.config["seed"], os.environ)
    splits = {name: images for name, images in (("train", source.train), ("val", source.val)) if images is not None}
    names = {name: names_of(images, data) for name, images in splits.items()}
    states = {name: states_of(images) for name, images in splits.items()}
    unfinished = Unfinished(out, states)
    asked = Asked(
        options["form"],
        options["short_side"],
        options["quality"],
        data["exif_orientation"],
        options["shard_mib"],
        encoder(data["decoder"]),
        fingerprint(source, splits, names),
    )
    sized = replace(asked, source=with_sizes(asked.source, states))  # images may be mended as long as it is unfinished
    if (out / FILE).exists():
        manifest = manifests.read(out)
        _compare({name: getattr(manifest, name) for name in asdict(asked)}, sized, out, "a pack")
        shutil.rmtree(out / WORK, ignore_errors=True)  # killed between the mark and this
        print_message(f"{out} is packed already: {_counts(manifest)}.", sys.stdout)
        return
    packing = Packing(asked.form, asked.short_side, asked.quality)
    plans = _plans(out, asked, splits, packing, unfinished)
    todo = [shard for shard in plans if unfinished.written(shard) is None]
    if changed := sum(unfinished.is_outdated(shard) for shard in todo):
        print_message(f"Making {changed:,} of {len(plans):,} shards anew: images in them have changed since.")
    pool = Pool(splits, packing, plan.num_workers if todo else 1, data["mp_context"])
    try:
        written, bad = _write(out, plans, pool, names, unfinished, keep_bad=data["on_bad_image"] == "skip")
    finally:
        pool.close()
    unfinished.expect_unchanged(splits, names)
    _judge(out, bad, data, sum(len(images) for images in splits.values()))
    manifest = Manifest(
        **asdict(sized),
        classes=source.classes,
        labels=source.labels,
        splits={
            name: _finish(out, name, images, [shard for shard in plans if shard.split == name], written, names[name])
            for name, images in splits.items()
        },
    )
    shards.save(out / FILE, manifest.dump())
    shutil.rmtree(out / WORK)
    before = sum(split.source_bytes for split in manifest.splits.values())
    after = sum(path.stat().st_size for path in out.iterdir())
    taken_s = time.monotonic() - begin_s
    print_message(
        f"{out}: {_counts(manifest)} packed, {before / MIB:,.1f} MiB before, {after / MIB:,.1f} MiB after, in "
        f"{duration(taken_s)} ({taken_s:.1f} s). Train from it with data=packed {option('data.root', out)}",
        sys.stdout,
    )


def _compare(there: Mapping[str, Any], asked: Asked, out: Path, what: str) -> None:
    """Raises ConfigError where this is not what `out` was begun with."""
    said = {"source": "other images", "encoder": f"other libraries ({there.get('encoder')}; now {asked.encoder})"}
    found = [
        said.get(name, f"{name}={there.get(name)} instead of {value}")
        for name, value in asdict(asked).items()
        if there.get(name) != value
    ]
    if found:
        raise ConfigError(
            f"{out} must hold {what} of what is asked for, but was made with "
            f"{', '.join(found)}. Hint: type "
            "the options it was made with, or remove the folder, or out=FOLDER for another one."
        )


def _plans(
    out: Path, asked: Asked, splits: Mapping[str, Images], packing: Packing, unfinished: Unfinished
) -> list[Shard]:
    """Which images go to which shard: decided when a pack begins, and kept in WORK for those that go on."""
    begun = out / WORK / "plan.json"
    if begun.exists():
        plain = json.loads(begun.read_bytes())
        _compare(plain["asked"], asked, out, "an unfinished pack")
        means = plain["mean_bytes"]
    else:
        means = {name: _mean_bytes(images, packing) for name, images in splits.items()}
    found = []
    for name, images in splits.items():
        per_shard = max(1, int(asked.shard_mib * MIB / max(means[name], 1)))
        found += shards.divide(name, len(images), per_shard, shuffle=name == "train")
    needed = sum(means[shard.split] * len(shard.indices) for shard in found if not unfinished.written(shard))
    free = shutil.disk_usage(out).free
    if needed > free:
        raise ConfigError(
            f"{out} must have room for about {needed / MIB:,.0f} MiB, but its disk has {free / MIB:,.0f} MiB "
            "free. Hint: make room, out=FOLDER on another disk, or a smaller prepare.short_side."
        )
    if not begun.exists():
        begun.parent.mkdir(exist_ok=True)
        shards.save(begun, json.dumps({"asked": asdict(asked), "mean_bytes": means}).encode())
    return found


def _mean_bytes(images: Images, packing: Packing) -> float:
    """Of a packed image, from a sample that is the same each time."""
    sample = np.unique(np.linspace(0, len(images) - 1, min(SAMPLE, len(images))).astype(np.int64))
    sizes = [len(packed.data) for packed in (pack(images, index, packing) for index in sample.tolist())]
    return float(np.mean([size for size in sizes if size] or [0]))


def _write(
    out: Path,
    plans: list[Shard],
    pool: Pool,
    names: Mapping[str, Names],
    unfinished: Unfinished,
    *,
    keep_bad: bool,
) -> tuple[dict[str, Written], list[tuple[str, str]]]:
    """(file -> what was written, [(name, reason) of each bad image])"""
    progress = Progress("pack", sum(len(shard.indices) for shard in plans), "images")
    written, bad = {}, []
    for shard in plans:
        done = unfinished.written(shard)
        if done is not None and (keep_bad or not done.bad):
            progress.before(len(shard.indices))
        else:
            unfinished.begin(shard)
            counted = _counted(pool.map(shard.split, shard.indices), progress)
            done = shards.write(out, shard, counted, keep_bad=keep_bad)
            if keep_bad or not done.bad:  # else what lies there, if anything, is of other images
                unfinished.end(shard)
        written[shard.file] = done
        bad += [
            (f"{shard.split}/{names[shard.split][int(shard.indices[number])]}", reason) for number, reason in done.bad
        ]
    progress.end()
    return written, bad


def _counted(packed: Any, progress: Progress) -> Any:
    for image in packed:
        yield image
        progress.add(1)


def _judge(out: Path, bad: list[tuple[str, str]], data: Mapping[str, Any], num_images: int) -> None:
    """Raises RunError where images are bad, or too many."""
    kept = out / BAD  # beside the finished pack; of an unfinished one it is in WORK
    if not bad:
        kept.unlink(missing_ok=True)
        return
    limit = data["bad_image_limit"]
    most = max_bad_images(limit, num_images)
    is_refused = data["on_bad_image"] != "skip" or len(bad) > most
    listed = out / WORK / BAD if is_refused else kept
    shards.save(listed, shards.bad_csv(bad))
    lines = [f"  {name}: {reason}" for name, reason in bad[:SAID]]
    lines += [f"  ... and {len(bad) - SAID} more, in {listed}"] if len(bad) > SAID else []
    many = f"{len(bad):,} of {count_noun(num_images, 'image')} cannot be read:\n" + "\n".join(lines)
    if data["on_bad_image"] != "skip":
        raise RunError(
            f"{many}\nHINT: data.on_bad_image=skip leaves them out; or put whole files in their place. "
            "Then type the same again: it goes on where it was."
        )
    if len(bad) > most:
        raise RunError(
            f"{many}\nThat is more than data.bad_image_limit={limit:g} allows ({count_noun(most, 'image')}). "
            f"Hint: look at those files, or data.bad_image_limit={2 * len(bad)}."
        )
    print_message(f"Left out: {many}")


def _finish(
    out: Path, name: str, images: Images, plans: list[Shard], written: Mapping[str, Written], names: Names
) -> Split:
    """The index of a split: what its shards noted, in the order of the source."""
    records = np.zeros(len(images), manifests.RECORD)
    left_out = []
    for shard in plans:
        records[shard.indices] = shards.index(out, shard)
        left_out += [(int(shard.indices[number]), reason) for number, reason in written[shard.file].bad]
    kept = records["num_bytes"] > 0
    if not kept.any():
        raise RunError(f"at least one {name} image must be readable, but none is. Hint: another source.")
    begins = np.concatenate([[0], names.ends[:-1]])
    arrays = {
        "records": records[kept],
        "targets": images.targets[kept].astype("<i8"),
        "names": names.of[np.repeat(kept, names.ends - begins)],
        "name_ends": np.cumsum((names.ends - begins)[kept]).astype("<i8"),
    }
    return Split(
        int(kept.sum()),
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
