"""Run prepare=check: decode every image, and report bad, duplicate, missing and unevenly distributed images."""

import contextlib
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data import inspect
from imagenet_ddp.data.decode import UnreadableImage, decode
from imagenet_ddp.data.pillow import is_rotated
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.files import FileImages
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare.options import Plan
from imagenet_ddp.prepare.worker_pool import process_images
from imagenet_ddp.runs import folder as run_folder
from imagenet_ddp.runs.folder import disk_errors_as_run_error
from imagenet_ddp.system.console import Progress, print_message
from imagenet_ddp.system.files import atomic_write, csv_bytes
from imagenet_ddp.system.text import count_noun

WINDOW = 4096  # finished probes that may wait for a slow one before them
HEADER_BYTES = 65536  # with the EXIF data of a photograph, and without those of a second image in the file
MAX_PRINTED = 20  # bad images named in the summary


class Probe(NamedTuple):
    """The result for one image. reason: why it cannot be decoded; None if it can. content_hash: 64-bit BLAKE2b of the
    file's bytes, or of the pixels if there is no file; 0 if they could not be read. is_rotated: by its EXIF data."""

    reason: str | None
    content_hash: int = 0
    is_rotated: bool = False


@dataclass
class SplitReport:
    classes: dict[str, int]  # name -> number of images
    left_out: dict[str, int]  # "hidden", "special" or an extension -> number of files
    num_read: int = 0
    num_rotated: int = 0

    @property
    def num_images(self) -> int:
        return sum(self.classes.values())


@dataclass
class Report:
    """The results of a check. findings: sentences with a hint; any of them makes the exit code 1. notes: other
    remarks."""

    data: DataConfig
    splits: dict[str, SplitReport] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)  # path, reason
    duplicates: list[tuple[str, str, str]] = field(default_factory=list)  # where, path, path of the other image
    seconds: float = 0.0

    @property
    def num_bad(self) -> int:
        return len(self.findings) + len(self.bad)


def run(plan: Plan) -> int:
    """Check the images and return the exit code: 1 if something bad was found, else 0. Raises ConfigError if the
    options are refused, RunError if the check fails."""
    config, data = plan.config, plan.config.data
    source = open_source(data, config.seed)
    layout = inspect.describe(data, config.seed, source)
    report = Report(data, findings=layout.mistakes, notes=layout.notes)
    images = {name: split.images for name, split in layout.splits.items()}
    for name, split in images.items():
        counts = np.bincount(split.targets, minlength=len(source.classes)).tolist()
        left_out = dict(split.left_out) if isinstance(split, FileImages) else {}
        report.splits[name] = SplitReport(dict(zip(source.classes, counts, strict=True)), left_out)
    if config.out is None:
        out = run_folder.make_new(plan.out)
    else:
        out = plan.out
        with disk_errors_as_run_error(out):
            out.mkdir(parents=True, exist_ok=True)
    try:
        contents = _probe_all(images, plan, report)
    except BaseException:
        if config.out is None:
            run_folder.remove_refused(out, ConfigError(""))  # nothing was written
        raise
    _add_duplicates(contents, images, report)
    with disk_errors_as_run_error(out):
        _write_report(out, report)
    _print_report(report, out)
    return int(report.num_bad > 0)


def _probe_all(images: Mapping[str, Images], plan: Plan, report: Report) -> dict[str, np.ndarray]:
    """Add the images that cannot be read to the report. Return split -> content hashes of its images, uint64 (N,),
    where 0 means unknown."""
    contents = {name: np.zeros(len(members), dtype=np.uint64) for name, members in images.items()}
    progress = Progress("check", sum(len(members) for members in images.values()), "images")
    progress.more = lambda: f" ({len(report.bad):,} bad)"
    tasks = ((name, index) for name, members in images.items() for index in range(len(members)))
    results = process_images(probe_image, images, tasks, plan.num_workers, plan.config.prepare.timeout_s, WINDOW)
    with contextlib.closing(progress), contextlib.closing(results):
        for result in results:
            probe = result.value or Probe(result.failure)
            if probe.reason is None:
                report.splits[result.split].num_read += 1
                report.splits[result.split].num_rotated += probe.is_rotated
            else:
                report.bad.append((images[result.split].path(result.index), probe.reason))
            contents[result.split][result.index] = probe.content_hash
            progress.add(1)
    report.seconds = progress.seconds
    how = "turned" if plan.config.data.exif_orientation else "not turned (data.exif_orientation=false)"
    report.notes += [
        f"{name}: {count_noun(split.num_rotated, 'photograph')} with an EXIF rotation or mirroring, {how}"
        for name, split in report.splits.items()
        if split.num_rotated
    ]
    return contents


def probe_image(images: Images, index: int) -> Probe:
    """Decode and hash one image. Never raises for a bad image."""
    content = 0
    try:
        data = images.encoded(index)
        if isinstance(images, FileImages) and data is not None:
            content = _content_hash(data)
            decode(data, images.path(index), images.reading)
            return Probe(None, content, is_rotated(data[:HEADER_BYTES]))
        images.verify(index)
        pixels = images.read(index)
        return Probe(None, _content_hash(pixels.contiguous().numpy() if data is None else data))
    except UnreadableImage as error:
        return Probe(error.reason, content)
    except OSError as error:
        return Probe(error.strerror or str(error), content)
    except Exception as error:  # a user's own source may raise anything
        return Probe(f"{type(error).__name__}: {error}", content)


def _content_hash(data: Any) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1


def _add_duplicates(contents: Mapping[str, np.ndarray], images: Mapping[str, Images], report: Report) -> None:
    """Report images with the same content. An image that is in both train and val invalidates the validation, and one
    of the labels of an image that is in two classes is wrong."""
    first: dict[str, dict[int, int]] = {}  # split -> content -> position of the first image with it
    for split, content in contents.items():
        path, targets, known = images[split].path, images[split].targets, first.setdefault(split, {})
        pairs = [(known.setdefault(value, index), index) for index, value in enumerate(content.tolist()) if value]
        pairs = [(a, b) for a, b in pairs if a != b]
        differ = [bool(targets[a] != targets[b]) for a, b in pairs]
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
    if contents.keys() < {"train", "val"}:
        return
    val = enumerate(contents["val"].tolist())
    leaks = [(first["train"][value], index) for index, value in val if value in first["train"]]
    report.duplicates += [
        ("train and val, same bytes", images["train"].path(a), images["val"].path(b)) for a, b in leaks
    ]
    if count := len(leaks):
        report.findings.append(
            f"validation images must not be in train, but {count:,} {'is' if count == 1 else 'are'} in train too, "
            "byte for byte. Hint: remove those listed in duplicates.csv from train."
        )


def _write_report(folder: Path, report: Report) -> None:
    content = {
        "data": dict(report.data),
        "splits": {
            name: {
                "num_images": split.num_images,
                "num_read": split.num_read,
                "num_classes": len(split.classes),
                "classes": split.classes,
                "left_out": split.left_out,
            }
            for name, split in report.splits.items()
        },
        "num_bad_images": len(report.bad),
        "num_duplicates": len(report.duplicates),
        "findings": report.findings,
        "notes": report.notes,
        "seconds": round(report.seconds, 3),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False)
    atomic_write(folder / "bad_images.csv", csv_bytes(("path", "reason"), report.bad))
    atomic_write(folder / "duplicates.csv", csv_bytes(("where", "path", "other"), report.duplicates))
    # file names may contain bytes that are not valid text
    atomic_write(folder / "report.json", f"{text}\n".encode(errors="backslashreplace"))


def _print_report(report: Report, folder: Path) -> None:
    write = partial(print_message, stream=sys.stdout)
    for name, split in report.splits.items():
        counts = split.classes.values()
        fewest, most = min(counts, default=0), max(counts, default=0)
        span = f"{fewest:,} to {most:,}" if fewest < most else f"{most:,}"
        classes = count_noun(len(counts), "class")
        write(
            f"{name}: {split.num_read:,} of {split.num_images:,} images can be read, {classes} with {span} images each"
        )
    for path, reason in report.bad[:MAX_PRINTED]:
        write(f"bad: {path}: {reason}")
    if len(report.bad) > MAX_PRINTED:
        write(f"and {len(report.bad) - MAX_PRINTED:,} more in {folder / 'bad_images.csv'}")
    for text in report.notes:
        write(f"note: {text}")
    for text in report.findings:
        write(f"found: {text}")
    write(f"Report: {folder}/report.json, bad_images.csv, duplicates.csv")
    rate = sum(split.num_images for split in report.splits.values()) / max(report.seconds, 1e-9)
    verdict = f"{count_noun(report.num_bad, 'problem')} found" if report.num_bad else "No problems found"
    write(f"{verdict}. {report.seconds:.1f} s, {rate:,.0f} images/s.")
