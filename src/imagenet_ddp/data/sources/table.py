"""Read the images of a table (data=table), CSV or Parquet, of which table_rows.py reads the rows."""

import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from imagenet_ddp.config.schema.data import TABLE_SUFFIXES, TableData
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.data.decoding.decode import Reading
from imagenet_ddp.data.sources.base import Names, Scan, Source, SourceType
from imagenet_ddp.data.sources.groups import number_groups, wrong_groups
from imagenet_ddp.data.sources.image_files import FileImages, digest
from imagenet_ddp.data.sources.table_rows import Row, Table, read_table, rows_message
from imagenet_ddp.data.sources.validation_split import split_validation
from imagenet_ddp.data.sources.walk import map_concurrently
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.system.files import describe_path
from imagenet_ddp.system.text import count_noun, printable, shorten_list

BUDGET_S = 20.0  # for looking for files; those that are not looked for count as existing
_CHUNK = 1024  # number of files that a thread looks for


class ImageTable(SourceType[TableData]):
    def scan(self, data: TableData, seed: int, purpose: Purpose, *, whole: bool = True) -> Scan:
        """Report each kind of mistake in the table, including paths of missing files."""
        table = read_table(data, purpose)
        is_val = not purpose.needs_train and data.val_fraction is None
        rows = table.of_split("val") if is_val else table.rows
        found = rows_message(
            f"{table.file}: path must name an existing file, relative to "
            f"{describe_path(table.folder)} or absolute, but does not",
            [(rows[at].number, rows[at].path) for at in find_missing(table.folder, [row.path for row in rows])],
            "correct those rows (a folder or a pipe is not a file), or set data.images_dir=FOLDER to the folder to "
            "which the paths are relative",
        )
        need_train = purpose.needs_train or data.val_fraction is not None
        train_rows, val_rows = table.of_split("train") if need_train else [], table.of_split("val")
        classes = sorted({label for row in (*train_rows, *val_rows) for label in row.labels(data)})
        train, val = (_images(table, rows, classes, data) for rows in (train_rows, val_rows))
        notes = [table.note, *(_joined_labels(classes) if data.labels == "one" else [])]
        open_images = partial(_open, data, seed, classes, train if need_train else None, val, notes)
        wrong = list[Mistake]()
        if data.val_fraction is not None:
            wrong = wrong_groups(data.groups, train)
        elif purpose in (Purpose.TRAIN, Purpose.CHECK):
            way = "correct its column `split`, or remove that column and set data.val_fraction=0.2; rename its column "
            way += "`group` if that means something else"
            wrong = wrong_groups(data.groups, train, val, way=way)
        return Scan(data, seed, purpose, [*found, *wrong], open_images)

    def recognise(self, root: str, folder: Path, otherwise: str) -> list[str]:
        is_table = folder.suffix.lower() in TABLE_SUFFIXES and not folder.is_dir() and "://" not in root
        return ["data=table", f"data.root={root}"] if is_table else []


def _open(
    data: TableData, seed: int, classes: list[str], train: FileImages | None, val: FileImages, notes: list[str]
) -> Source:
    digits = digest(train, val) if train is not None else digest(val)
    if data.val_fraction is not None and train is not None:
        notes = [*notes]
        number_groups(data.groups, train, notes=notes)
        train, val, digits = split_validation(train, data.val_fraction, seed, data.val_fold)
    elif train is not None:
        notes = [*notes]
        number_groups(data.groups, train, val, notes=notes)
    val.weights = None  # validation weights all images equally
    if train is not None and len(train) and (weights := train.weights) is not None:
        notes = [
            *notes,
            f"The loss of each training image is multiplied by its weight, {weights.min():g} to "
            f"{weights.max():g}, {weights.mean():.4g} on average.",
        ]
    return Source(classes, train, val, notes=notes, digest=digits)


def _images(table: Table, rows: Sequence[Row], classes: Sequence[str], data: TableData) -> FileImages:
    positions = {name: position for position, name in enumerate(classes)}
    if data.labels == "one":
        targets = np.fromiter((positions[row.label] for row in rows), np.int64, len(rows))
    else:
        targets = np.zeros((len(rows), len(classes)), np.uint8)
        for number, row in enumerate(rows):
            targets[number, [positions[label] for label in row.labels(data)]] = 1
    reading = Reading.of(data)
    images = FileImages(table.folder, Names.of(row.path for row in rows), targets, reading)
    if "weight" in table.columns:
        images.weights = np.fromiter((float(row.weight) for row in rows), np.float32, len(rows))
    if "group" in table.columns:
        first = {row.group: row.number for row in reversed(table.rows) if row.group}
        images.groups = np.fromiter((first.get(row.group, row.number) for row in rows), np.int64, len(rows))
    return images


def find_missing(folder: Path, paths: Sequence[str], budget_s: float = BUDGET_S) -> list[int]:
    """Return the positions of the paths (relative to the folder, or absolute) that are missing or not regular files, of
    those that could be looked for within budget_s seconds."""
    end_s = time.monotonic() + budget_s

    def look(begin: int) -> list[int]:
        part = range(begin, min(begin + _CHUNK, len(paths)))
        return [at for at in part if time.monotonic() < end_s and not os.path.isfile(os.path.join(folder, paths[at]))]  # noqa: PTH113, PTH118 (hot loop)

    return [at for found in map_concurrently(look, range(0, len(paths), _CHUNK)) for at in found]


def _joined_labels(classes: Sequence[str]) -> list[str]:
    """Return a sentence about the classes that look like several labels in one cell. Commas are usual within a name
    ("tench, Tinca tinca"), so they count only between names that occur in other classes, too."""
    parts = {name: [part.strip() for part in re.split(r"[;|,]", name)] for name in classes}
    counts = Counter(part for each in parts.values() for part in set(each))
    joined = [
        name
        for name, each in parts.items()
        if len(each) > 1 and all(each) and (re.search(r"[;|]", name) or any(counts[part] > 1 for part in each))
    ]
    if not joined:
        return []
    what = f"{count_noun(len(joined), 'label')} of {len(classes):,} {'joins' if len(joined) == 1 else 'join'} several"
    said = f"{what} names ({printable(shorten_list(joined))}): each is one class, because an image has one label."
    if any(re.search(r"[;|]", name) for name in joined):
        said += " Hint: if these are several labels of an image, set data.labels=several loss.name=bce."
    return [said]
