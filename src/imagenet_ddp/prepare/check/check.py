"""prepare=check: every image opened and decoded; what is bad, double, missing or uneven, in a report."""

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.data import inspect
from imagenet_ddp.data import validate as data_check
from imagenet_ddp.data.decoding.image import Reading
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.folder.images import walk
from imagenet_ddp.data.sources.folder.scan import class_folders
from imagenet_ddp.data.sources.folder.walk import describe_left_out
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare.check import duplicates
from imagenet_ddp.prepare.check.duplicates import Duplicates
from imagenet_ddp.prepare.check.report import Report, Split, write
from imagenet_ddp.prepare.check.sandbox import Limits, examine
from imagenet_ddp.prepare.options import FailedError, Plan
from imagenet_ddp.runs import folder
from imagenet_ddp.system import console
from imagenet_ddp.system.progress_bar import Progress
from imagenet_ddp.system.text import count_noun

SHOWN = 20  # bad images on the screen; all of them are in bad_images.csv
LAYOUT_S = 3600.0  # for counting files: here there is time


def run(plan: Plan) -> int:
    """Exit code: 0 nothing bad found, 1 something. Raises ConfigError, RunError, FailedError."""
    assert plan.out is not None
    config, options = plan.config, plan.options
    data = config["data"]
    report = Report(data)
    looked = inspect.inspect_data(data, config["seed"], os.environ, LAYOUT_S)
    report.findings += looked.mistakes
    report.notes += looked.notes
    images = _splits(data, config["seed"], report)
    out = _folder(plan.out, config["out"] is not None)
    results = {name: _Result(members) for name, members in images.items()}
    progress = Progress("check", sum(len(members) for members in images.values()), "images")
    progress.more = lambda: f" ({sum(len(result.bad) for result in results.values()):,} bad)"
    limits = Limits(options["timeout_s"], options["memory_mib"])
    try:
        with contextlib.closing(examine(images, plan.num_workers, limits, data["mp_context"])) as looks:
            for found in looks:
                if not progress.done:  # the processes have begun
                    progress.restart()
                results[found.split].take(found.index, found.look)
                progress.add(1)
    except BaseException:
        if config["out"] is None:
            folder.remove_refused(out, ConfigError(""))  # nothing was written
        raise
    finally:
        progress.end()
    report.seconds = progress.seconds
    for name, result in results.items():
        report.splits[name].num_read = len(result.contents) - len(result.bad)
        report.bad += [(images[name].path(index), reason) for index, reason in sorted(result.bad.items())]
    same = duplicates.find(
        {name: result.contents for name, result in results.items()},
        {name: result.pictures for name, result in results.items()},
    )
    _judge(same, images, report)
    try:
        write(out, report)
    except OSError as error:
        raise FailedError(f"the report cannot be written in {out}: {error.strerror}. Hint: out=FOLDER.") from error
    _print(report, out)
    return int(report.is_bad)


class _Result:
    """What was found of a split, by index."""

    def __init__(self, images: Images):
        self.contents = np.zeros(len(images), dtype=np.uint64)
        self.pictures = np.zeros((len(images), 16), dtype=np.uint8)
        self.bad: dict[int, str] = {}

    def take(self, index: int, look: Any) -> None:
        self.contents[index] = look.content
        self.pictures[index] = np.frombuffer(look.picture, dtype=np.uint8)
        if look.reason is not None:
            self.bad[index] = look.reason


# ---- what there is to look at --------------------------------------------------------------------------------------


def _splits(data: Mapping[str, Any], seed: int, report: Report) -> dict[str, Images]:
    """Folders are looked at each by itself, so that train and val may differ; other sources as training opens them."""
    if data["_target_"] or data["name"] not in data_check.OF_FOLDERS:
        source = open_source(data, seed, os.environ)
        found = {name: images for name, images in (("train", source.train), ("val", source.val)) if images is not None}
        for name, images in found.items():
            report.splits[name] = Split(_counts(images, source.classes))
        return found
    root, found = Path(data["root"]), {}
    for name in ("train", "val"):
        place = root / data[f"{name}_dir"]
        if (name == "val" and data["val_fraction"] is not None) or not place.is_dir():
            continue
        classes = class_folders(place)
        images = walk(place, classes, Reading(data["decoder"], data["exif_orientation"]))
        report.splits[name] = Split(_counts(images, classes), dict(images.left_out))
        if images.left_out:
            report.notes.append(f"{name}: {describe_left_out(images.left_out)}")
        found[name] = images
    return found


def _counts(images: Images, classes: list[str]) -> dict[str, int]:
    counts = np.bincount(images.targets, minlength=len(classes))
    return {name: int(count) for name, count in zip(classes, counts, strict=True)}


def _folder(wanted: Path, is_typed: bool) -> Path:
    if not is_typed:
        return folder.make_new(wanted)
    wanted.mkdir(parents=True, exist_ok=True)
    return wanted


# ---- judging -------------------------------------------------------------------------------------------------------


def _judge(found: Duplicates, images: Mapping[str, Images], report: Report) -> None:
    """Of what is double: between train and val it makes validation a lie, in two classes it is a wrong label."""

    def path(place: duplicates.Place) -> str:
        return images[place[0]].path(place[1])

    report.duplicates = [("train and val, same bytes", path(a), path(b)) for a, b in found.same_between]
    report.duplicates += [("train and val, same picture", path(a), path(b)) for a, b in found.alike_between]
    if count := len(found.same_between):
        report.findings.append(
            f"validation images must be new, but {count:,} {'is' if count == 1 else 'are'} in train too, "
            "byte for byte. Hint: remove them from train; duplicates.csv lists them."
        )
    if count := len(found.alike_between):
        report.notes.append(
            f"{count:,} validation image{'s show' if count > 1 else ' shows'} what a training image shows, as it seems "
            "(in another size, quality or file format): duplicates.csv"
        )
    for split, pairs in found.same_within.items():
        targets = images[split].targets
        contrary = [(a, b) for a, b in pairs if targets[a[1]] != targets[b[1]]]
        report.duplicates += [
            (f"{split}, {'two classes' if targets[a[1]] != targets[b[1]] else 'one class'}", path(a), path(b))
            for a, b in pairs
        ]
        if contrary:
            report.findings.append(
                f"an image must have one class, but {len(contrary):,} in {split} lie in two, byte for byte. "
                "Hint: keep the right one of each; duplicates.csv lists them."
            )
        if count := len(pairs) - len(contrary):
            report.notes.append(f"{split}: {count:,} image{'s are' if count > 1 else ' is'} there twice within a class")


# ---- the screen ----------------------------------------------------------------------------------------------------


def _print(report: Report, out: Path) -> None:
    say = partial(console.print_message, stream=sys.stdout)
    for name, split in report.splits.items():
        counts = split.classes.values()
        span = f"{min(counts):,} to {max(counts):,} of each" if counts else "none"
        classes = count_noun(len(counts), "class")
        say(f"{name}: {split.num_read:,} of {split.num_images:,} images can be read, {classes}, {span}")
    for path, reason in report.bad[:SHOWN]:
        say(f"bad: {path}: {reason}")
    if len(report.bad) > SHOWN:
        say(f"and {len(report.bad) - SHOWN:,} more in {out / 'bad_images.csv'}")
    reasons = Counter(reason for _, reason in report.bad)
    if len(report.bad) > SHOWN:
        say("by reason: " + "; ".join(f"{count:,} {reason}" for reason, count in reasons.most_common(5)))
    for text in report.notes:
        say(f"note: {text}")
    for text in report.findings:
        say(f"found: {text}")
    say(f"compared: {report.compared}")
    say(f"Report: {out}/report.json, bad_images.csv, duplicates.csv")
    rate = sum(split.num_images for split in report.splits.values()) / max(report.seconds, 1e-9)
    verdict = f"{report.num_bad:,} found" if report.is_bad else "Nothing bad found"
    say(f"{verdict}. {report.seconds:.1f} s, {rate:,.0f} images/s.")
