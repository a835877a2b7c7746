"""Write a table of the images of a folder, in the format that data=table reads."""

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
    """Write a row for each image of train/ and val/ in the tree, sorted by path, and return the file.

    absolute: write absolute paths instead of paths relative to the table. split: write a column "split"; false: write
    only the images of train/. weight: function from the path of an image to its weight.
    """
    rows = [["path", "label", *["split"] * split, *["weight"] * (weight is not None)]]
    for name in ("train", "val") if split else ("train",):
        for path in sorted((tree / name).glob("*/*")):
            where = path if absolute else path.relative_to(file.parent)
            more = [str(weight(path))] if weight is not None else []
            rows.append([str(where), path.parent.name, *[name] * split, *more])
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)
    return file
