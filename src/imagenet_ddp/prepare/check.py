"""Run prepare=check: decode every image, and report bad, duplicate, missing and unevenly distributed images."""

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from imagenet_ddp.data import inspect
from imagenet_ddp.data.decode import JpegPicture, Reading, UnreadableImage, decode_whole, open_picture
from imagenet_ddp.data.pillow import assumed, is_rotated
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.files import FileImages, list_images
from imagenet_ddp.data.sources.layout import find_layout
from imagenet_ddp.data.sources.listing import class_folders
from imagenet_ddp.data.sources.registry import OF_FOLDERS, open_source
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.prepare.check_report import Report, SplitReport, print_report, write_report
from imagenet_ddp.prepare.options import Plan
from imagenet_ddp.prepare.worker_pool import Limits, Result, process_images
from imagenet_ddp.runs import folder as run_folder
from imagenet_ddp.system.progress_bar import Progress
from imagenet_ddp.system.text import count_noun

WINDOW = 4096  # finished probes that may wait for a slow one before them
OUT_OF_MEMORY = "MemoryError"
JPEG, HEADER_BYTES = b"\xff\xd8", 65536  # signature; where EXIF data are, at the beginning of the file
IGNORED = "which is ignored (data.exif_orientation=true rotates them)"


class Probe(NamedTuple):
    """The result for one image. reason: why it cannot be decoded; None if it can. content_hash: 64-bit BLAKE2b of the
    file's bytes, or of the pixels if there is no file; 0 if they could not be read. assumed: what was assumed to decode
    it (pillow.assumptions)."""

    reason: str | None
    content_hash: int = 0
    assumed: tuple[str, ...] = ()


def run(plan: Plan) -> int:
    """Check the images and return the exit code: 1 if something bad was found, else 0. Raises ConfigError if the
    options are refused, RunError if the check fails."""
    config, data = plan.config, plan.config["data"]
    report = Report(data)
    layout = inspect.inspect_data(data, config["seed"], os.environ)
    report.findings += layout.mistakes
    report.notes += layout.notes
    images = _open_splits(data, config["seed"], report)
    if config["out"] is None:
        out = run_folder.make_new(plan.out)
    else:
        out = plan.out
        with _report_errors(out):
            out.mkdir(parents=True, exist_ok=True)
    try:
        contents = _probe_all(images, plan, report)
    except BaseException:
        if config["out"] is None:
            run_folder.remove_refused(out, ConfigError(""))  # nothing was written
        raise
    _add_duplicates(contents, images, report)
    with _report_errors(out):
        write_report(out, report)
    print_report(report, out)
    return int(report.num_bad > 0)


@contextlib.contextmanager
def _report_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"the report cannot be written to {out}: {error.strerror}. Hint: set out=FOLDER.") from error


def _probe_all(images: Mapping[str, Images], plan: Plan, report: Report) -> dict[str, np.ndarray]:
    """Add the images that cannot be read to the report. Return split -> content hashes of its images, uint64 (N,),
    where 0 means unknown."""
    contents = {name: np.zeros(len(members), dtype=np.uint64) for name, members in images.items()}
    progress = Progress("check", sum(len(members) for members in images.values()), "images")
    progress.more = lambda: f" ({len(report.bad):,} bad)"
    tasks = ((name, index) for name, members in images.items() for index in range(len(members)))
    limits = Limits(plan.options["timeout_s"], plan.options["memory_mib"])
    results = process_images(probe_image, images, tasks, plan.num_workers, limits, WINDOW)
    try:
        with contextlib.closing(results):
            for result in results:
                if (reason := _why_bad(result, limits)) is not None:
                    report.bad.append((images[result.split].path(result.index), reason))
                else:
                    report.splits[result.split].num_read += 1
                    for what in result.value.assumed:
                        report.assumed.setdefault((result.split, what), []).append(
                            images[result.split].path(result.index)
                        )
                if not result.failure:
                    contents[result.split][result.index] = result.value.content_hash
                progress.add(1)
    finally:
        progress.close()
    report.seconds = progress.seconds
    return contents


def _why_bad(result: Result, limits: Limits) -> str | None:
    if result.failure:
        return result.failure + (" (prepare.timeout_s)" if result.is_timeout else "")
    if result.value.reason == OUT_OF_MEMORY:
        return f"it needs more than {limits.memory_mib} MiB (prepare.memory_mib)"
    return result.value.reason


def _open_splits(data: Mapping[str, Any], seed: int, report: Report) -> dict[str, Images]:
    """Open train and val separately if they are folders, because their classes may differ here. Open other sources as
    training does."""
    found: dict[str, tuple[Images, list[str]]] = {}
    if data["_target_"] or data["name"] not in OF_FOLDERS or data["val_fraction"] is not None:
        source = open_source(data, seed, os.environ, verb="check")
        both = (("train", source.train), ("val", source.val))
        found = {name: (images, source.classes) for name, images in both if images is not None}
    else:
        folders = find_layout(data)
        for name, folder in (("train", folders.train), ("val", folders.val)):
            if folder.is_dir():
                classes = class_folders(folder)
                reading = Reading(data["decoder"], data["exif_orientation"])
                found[name] = list_images(folder, classes, reading), classes
    for name, (images, classes) in found.items():
        left_out = images.left_out if isinstance(images, FileImages) else Counter[str]()
        report.splits[name] = SplitReport(_count_classes(images, classes), dict(left_out))
    return {name: images for name, (images, _) in found.items()}


def _count_classes(images: Images, classes: list[str]) -> dict[str, int]:
    counts = np.bincount(images.targets, minlength=len(classes))
    return {name: int(count) for name, count in zip(classes, counts, strict=True)}


def _add_duplicates(contents: Mapping[str, np.ndarray], images: Mapping[str, Images], report: Report) -> None:
    """Report images with the same content. An image that is in both train and val invalidates the validation, and one
    of the labels of an image that is in two classes is wrong."""
    leaks = same_between(contents["train"], contents["val"]) if contents.keys() >= {"train", "val"} else []
    report.duplicates = [
        ("train and val, same bytes", images["train"].path(a), images["val"].path(b)) for a, b in leaks
    ]
    if count := len(leaks):
        report.findings.append(
            f"validation images must not be in train, but {count:,} {'is' if count == 1 else 'are'} in train too, "
            "byte for byte. Hint: remove those listed in duplicates.csv from train."
        )
    for split, content in contents.items():
        path, targets, pairs = images[split].path, images[split].targets, same_within(content)
        differ = [targets[a] != targets[b] for a, b in pairs]
        report.duplicates += [
            (f"{split}, {'two classes' if is_other else 'one class'}", path(a), path(b))
            for (a, b), is_other in zip(pairs, differ, strict=True)
        ]
        if count := sum(differ):
            report.findings.append(
                f"an image must have one class, but {count:,} in {split} {'is' if count == 1 else 'are'} in two "
                "classes, byte for byte. Hint: keep only the correct image of each pair in duplicates.csv."
            )
        if count := len(pairs) - sum(differ):
            report.notes.append(f"{split}: {count_noun(count, 'duplicate')} within a class")


def same_within(values: np.ndarray) -> list[tuple[int, int]]:
    """Return (first, position) for each image whose content is that of an earlier image; first is the position of the
    earliest. values: content hashes, uint64 (N,), where 0 means unknown."""
    first: dict[int, int] = {}
    pairs = [(first.setdefault(value, index), index) for index, value in enumerate(values.tolist()) if value]
    return [(a, b) for a, b in pairs if a != b]


def same_between(train: np.ndarray, val: np.ndarray) -> list[tuple[int, int]]:
    """Return (position in train, position in val) for each validation image whose content is that of a training image,
    of which the first is taken. train, val: content hashes, uint64 (N,), where 0 means unknown."""
    first = {value: index for index, value in reversed(list(enumerate(train.tolist())))}
    return sorted((first[value], index) for index, value in enumerate(val.tolist()) if value and value in first)


def probe_image(images: Images, index: int) -> Probe:
    """Decode and hash one image. Never raises for a bad image."""
    content, notes = 0, list[str]()
    try:
        if isinstance(images, FileImages):
            data = images.encoded(index)
            content = _content_hash(data)
            picture = open_picture(data, images.path(index), images.reading)
            decode_whole(picture)
            notes = [] if isinstance(picture, JpegPicture) else assumed(data)
            if data.startswith(JPEG) and is_rotated(data[:HEADER_BYTES]):
                is_read = images.reading.exif_orientation
                notes.append(f"have an EXIF orientation, {'as which they are rotated' if is_read else IGNORED}")
        else:
            images.verify(index)
            pixels, data = images.read(index), images.encoded(index)
            content = _content_hash(pixels.contiguous().numpy() if data is None else data)
        return Probe(None, content, tuple(notes))
    except UnreadableImage as error:
        return Probe(error.reason, content)
    except OSError as error:
        return Probe(error.strerror or str(error), content)
    except MemoryError:
        return Probe(OUT_OF_MEMORY, content)
    except Exception as error:  # a user's own source may raise anything
        return Probe(f"{type(error).__name__}: {error}", content)


def _content_hash(data: Any) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1
