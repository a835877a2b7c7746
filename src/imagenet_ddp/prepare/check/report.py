"""What prepare=check has found, as files: report.json, bad_images.csv, duplicates.csv. No torch."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagenet_ddp.system.atomic_write import atomic_write

COMPARED = (
    "files by all their bytes; pictures by a difference hash of 128 bits of the decoded image in 9 x 9 grey pixels, "
    "equal but for 4 bits. An image that decodes, but has lost something, looks like any other"
)


@dataclass
class Split:
    classes: dict[str, int]  # name -> images
    left_out: dict[str, int] = field(default_factory=dict)  # hidden, special, or an extension -> files
    num_read: int = 0

    @property
    def num_images(self) -> int:
        return sum(self.classes.values())


@dataclass
class Report:
    """findings: sentences with a Hint, which make the exit code 1. notes: what else is worth a word."""

    data: Mapping[str, Any]
    splits: dict[str, Split] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)  # path, reason
    duplicates: list[tuple[str, str, str]] = field(default_factory=list)  # where, path, the other path
    compared: str = COMPARED
    seconds: float = 0.0

    @property
    def num_bad(self) -> int:
        return len(self.findings) + len(self.bad)

    @property
    def is_bad(self) -> bool:
        return self.num_bad > 0


def write(folder: Path, report: Report) -> None:
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
        "compared": report.compared,
        "seconds": round(report.seconds, 3),
    }
    # a file's name need not be text
    text = json.dumps(content, indent=2, ensure_ascii=False).encode(errors="backslashreplace")
    _write_csv(folder / "bad_images.csv", ("path", "reason"), report.bad)
    _write_csv(folder / "duplicates.csv", ("where", "path", "other"), report.duplicates)
    atomic_write(folder / "report.json", text + b"\n")


def _write_csv(path: Path, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    atomic_write(path, text.getvalue().encode(errors="backslashreplace"))
