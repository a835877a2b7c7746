"""A table of the images of a folder, as data=table reads it."""

import csv
from collections.abc import Callable
from pathlib import Path


def write_table(
    file: Path,
    tree: Path,
    *,
    absolute: bool = False,
    split: bool = True,
    weight: Callable[[Path], float] | None = None,
) -> Path:
    """Write the images of a tree in its order; without split those of train alone. weight: of an image."""
    rows = [["path", "label", *["split"] * split, *["weight"] * (weight is not None)]]
    for name in ("train", "val") if split else ("train",):
        for path in sorted((tree / name).glob("*/*")):
            where = path if absolute else path.relative_to(file.parent)
            more = [str(weight(path))] if weight is not None else []
            rows.append([str(where), path.parent.name, *[name] * split, *more])
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)
    return file
