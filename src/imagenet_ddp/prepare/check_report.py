"""Write the findings of prepare=check to report.json and the CSV files beside it, and print a summary.

Does not import torch.
"""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from imagenet_ddp.system.atomic_write import atomic_write
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.csv_file import csv_bytes
from imagenet_ddp.system.text import count_noun

MAX_PRINTED = 20  # bad images named in the summary
COMPARED = "all bytes of each file. An image that is damaged but can still be decoded is not detected"


@dataclass
class SplitReport:
    classes: dict[str, int]  # name -> number of images
    left_out: dict[str, int] = field(default_factory=dict)  # "hidden", "special" or an extension -> number of files
    num_read: int = 0

    @property
    def num_images(self) -> int:
        return sum(self.classes.values())


@dataclass
class Report:
    """The results of a check. findings: sentences with a hint; any of them makes the exit code 1. notes: other
    remarks."""

    data: Mapping[str, Any]
    splits: dict[str, SplitReport] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)  # path, reason
    assumed: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # (split, assumption) -> paths
    duplicates: list[tuple[str, str, str]] = field(default_factory=list)  # where, path, path of the other image
    seconds: float = 0.0

    @property
    def num_bad(self) -> int:
        return len(self.findings) + len(self.bad)


def write_report(folder: Path, report: Report) -> None:
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
        "num_assumed": {f"{split}: {what}": len(paths) for (split, what), paths in report.assumed.items()},
        "num_duplicates": len(report.duplicates),
        "findings": report.findings,
        "notes": report.notes,
        "compared": COMPARED,
        "seconds": round(report.seconds, 3),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False)
    atomic_write(folder / "bad_images.csv", csv_bytes(("path", "reason"), report.bad))
    assumed = ((split, what, path) for (split, what), paths in report.assumed.items() for path in paths)
    atomic_write(folder / "assumed.csv", csv_bytes(("split", "assumption", "path"), assumed))
    atomic_write(folder / "duplicates.csv", csv_bytes(("where", "path", "other"), report.duplicates))
    # file names may contain bytes that are not valid text
    atomic_write(folder / "report.json", f"{text}\n".encode(errors="backslashreplace"))


def print_report(report: Report, folder: Path) -> None:
    write = partial(print_message, stream=sys.stdout)
    for name, split in report.splits.items():
        counts = split.classes.values()
        fewest, most = min(counts, default=0), max(counts, default=0)
        span = f" with {fewest:,} to {most:,} images each" if fewest < most else f" with {most:,} images each"
        classes = count_noun(len(counts), "class")
        write(f"{name}: {split.num_read:,} of {split.num_images:,} images can be read, {classes}{span}")
    for path, reason in report.bad[:MAX_PRINTED]:
        write(f"bad: {path}: {reason}")
    if len(report.bad) > MAX_PRINTED:
        reasons = Counter(reason for _, reason in report.bad).most_common(5)
        write(f"and {len(report.bad) - MAX_PRINTED:,} more in {folder / 'bad_images.csv'}")
        write("by reason: " + "; ".join(f"{count:,} {reason}" for reason, count in reasons))
    for text in report.notes:
        write(f"note: {text}")
    for (split, what), paths in report.assumed.items():
        if len(paths) == 1:
            what = what.replace("have ", "has ", 1).replace("store ", "stores ", 1)
        write(f"note: {split}: {count_noun(len(paths), 'image')} {what}, such as {paths[0]}")
    for text in report.findings:
        write(f"found: {text}")
    write(f"compared: {COMPARED}")
    write(f"Report: {folder}/report.json, bad_images.csv, assumed.csv, duplicates.csv")
    rate = sum(split.num_images for split in report.splits.values()) / max(report.seconds, 1e-9)
    verdict = f"{count_noun(report.num_bad, 'problem')} found" if report.num_bad else "No problems found"
    write(f"{verdict}. {report.seconds:.1f} s, {rate:,.0f} images/s.")
