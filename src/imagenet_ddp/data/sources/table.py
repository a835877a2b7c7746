"""Read the images of a table (data=table), and report all mistakes of its rows at once, with the row numbers."""

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.decode import Reading
from imagenet_ddp.data.sources.base import Names, Source, SourceType
from imagenet_ddp.data.sources.cells import Cells, class_names_of, is_missing, read_cells
from imagenet_ddp.data.sources.files import FileImages, digest, map_concurrently
from imagenet_ddp.data.sources.registry import TABLE_COLUMNS, TABLE_SUFFIXES
from imagenet_ddp.data.sources.split import split_validation
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.files import describe_path
from imagenet_ddp.system.text import count_noun, printable, shorten_list

NEEDED = ("path", "label")
SPLITS = ("train", "val")
MAX_ROWS = 10  # number of rows named for each kind of mistake
MAX_CELL = 300  # characters of a cell shown in a message
BUDGET_S = 20.0  # for looking for files; those that are not looked for count as existing
_CHUNK = 1024  # number of files that a thread looks for


class ImageTable(SourceType):
    def check(self, data: DataConfig, verb: str) -> list[str]:
        """Report each kind of mistake in the table, including paths of missing files, which verb=check finds when it
        reads them."""
        try:
            table = read_table(data, verb)
        except ConfigError as error:
            return list(error.mistakes)
        rows: Sequence[int] = range(len(table.paths))
        if verb == "evaluate" and data.val_fraction is None:
            rows = table.rows_of("val", verb)
        missing = [] if verb == "check" else find_missing(table.folder, [table.paths[row] for row in rows])
        return rows_message(
            f"{table.file}: path must name an existing file, relative to "
            f"{describe_path(table.folder)} or absolute, but does not",
            [(table.numbers[rows[position]], table.paths[rows[position]]) for position in missing],
            "correct those rows (a folder or a pipe is not a file), or set data.images_dir=FOLDER to the folder to "
            "which the paths are relative",
        )

    def recognise(self, root: str, folder: Path, otherwise: str) -> list[str]:
        is_table = folder.suffix.lower() in TABLE_SUFFIXES and not folder.is_dir() and "://" not in root
        return ["data=table", f"data.root={root}"] if is_table else []

    def open(self, data: DataConfig, seed: int, verb: str) -> Source:
        """This function does not check whether the images exist."""
        table = read_table(data, verb)
        reading = Reading(data.decoder, data.exif_orientation)
        if data.val_fraction is not None:
            classes = sorted(set(table.labels))
            whole = _images(table, range(len(table.paths)), classes, reading)
            train, val, digits = split_validation(whole, data.val_fraction, seed, data.val_fold)
        else:
            train_rows = [] if verb == "evaluate" else table.rows_of("train", verb)
            val_rows = table.rows_of("val", verb)
            classes = sorted({table.labels[row] for row in (*train_rows, *val_rows)})
            train = None if verb == "evaluate" else _images(table, train_rows, classes, reading)
            val = _images(table, val_rows, classes, reading)
            digits = digest(train, val)
        val.weights = None  # validation weights all images equally
        notes = [table.note]
        if train is not None and len(train) and (weights := train.weights) is not None:
            notes.append(
                f"The loss of each training image is multiplied by its weight, {weights.min():g} to "
                f"{weights.max():g}, {weights.mean():.4g} on average."
            )
        return Source(classes, train, val, notes=notes, digest=digits)


@dataclass(frozen=True)
class Table:
    """The rows of a table without mistakes. labels: class names. splits, weights: None if the table has no such
    column."""

    file: Path
    folder: Path  # of the images
    numbers: Sequence[int]  # row numbers, as shown in messages
    paths: list[str]  # relative to the folder, or absolute
    labels: list[str]
    splits: list[str] | None
    weights: list[float] | None
    note: str  # sentences for the start of the log

    def rows_of(self, split: str, verb: str = "train") -> list[int]:
        """Return the positions of the rows in a split. Without a `split` column, all rows are training images, or
        validation images if verb is evaluate."""
        if self.splits is None:
            return list(range(len(self.paths))) if split == ("val" if verb == "evaluate" else "train") else []
        return [position for position, name in enumerate(self.splits) if name == split]

    def labels_of(self, split: str) -> set[str]:
        return {self.labels[row] for row in self.rows_of(split)}


def _images(table: Table, rows: Sequence[int], classes: Sequence[str], reading: Reading) -> FileImages:
    positions = {name: position for position, name in enumerate(classes)}
    targets = np.fromiter((positions[table.labels[row]] for row in rows), np.int64, len(rows))
    images = FileImages(table.folder, Names.of(table.paths[row] for row in rows), targets, reading)
    if table.weights is not None:
        images.weights = np.fromiter((table.weights[row] for row in rows), np.float32, len(rows))
    return images


def find_missing(folder: Path, paths: Sequence[str], budget_s: float = BUDGET_S) -> list[int]:
    """Return the positions of the paths (relative to the folder, or absolute) that are missing or not regular files, of
    those that could be looked for within budget_s seconds."""
    end_s = time.monotonic() + budget_s

    def look(begin: int) -> list[int]:
        part = range(begin, min(begin + _CHUNK, len(paths)))
        return [at for at in part if time.monotonic() < end_s and not os.path.isfile(os.path.join(folder, paths[at]))]  # noqa: PTH113, PTH118 (hot loop)

    return [at for found in map_concurrently(look, range(0, len(paths), _CHUNK)) for at in found]


def read_table(data: DataConfig, verb: str = "train") -> Table:
    """Read data.root. Raises ConfigError with all mistakes except files that do not exist."""
    if unknown := [key for key in data.args if key not in TABLE_COLUMNS]:
        raise ConfigError(
            f"data.args of data=table must be among {', '.join(TABLE_COLUMNS)}, got {', '.join(map(str, unknown))}. "
            f"Hint: leave data.args.{unknown[0]} out."
        )
    names = {purpose: str(data.args.get(purpose) or purpose) for purpose in TABLE_COLUMNS}
    path = _file(data.root)
    folder = Path(data.images_dir) if data.images_dir else path.parent
    if not folder.is_dir():
        raise ConfigError(
            f"data.images_dir must be the folder of the images, but {describe_path(folder)} is not a folder. Hint: set "
            "data.images_dir=FOLDER, or leave it out if the paths are relative to the table's folder."
        )
    cells = read_cells(path, names)
    if found := _missing_columns(path, cells, names):
        raise ConfigError(found)
    columns = {purpose: [cell.strip() for cell in cells.columns[purpose]] for purpose in cells.columns}
    columns["path"], columns["label"] = cells.columns["path"], class_names_of(columns["label"])
    if "split" in columns:
        columns["split"] = [cell.lower() for cell in columns["split"]]
    weights = list(map(_number, columns["weight"])) if "weight" in columns else None
    found = _wrong_rows(path, folder, cells, columns)
    ignored = f" Columns ignored: {shorten_list(cells.ignored)}." if cells.ignored else ""
    note = f"{path}: {count_noun(len(cells.numbers), 'row')}. Columns read: {', '.join(cells.columns)}.{ignored}"
    table = Table(path, folder, cells.numbers, columns["path"], columns["label"], columns.get("split"), weights, note)
    if found := found + _wrong_splits(table, data.val_fraction, verb):
        raise ConfigError(found)
    return table


def _file(root: str | None) -> Path:
    if root and Path(root).is_file():
        return Path(root)
    got, hint = "got null", "with the columns path and label"
    if root:
        got = f"but {describe_path(Path(root))} is not a file"  # reading a pipe might never end
        hint = f"or set data=imagefolder with data.root={root}" if Path(root).is_dir() else hint
    raise ConfigError(f"data.root must be the table of the images, {got}. Hint: set data.root=FILE.csv, {hint}.")


def _missing_columns(path: Path, cells: Cells, names: Mapping[str, str]) -> list[str]:
    # a column whose name is set in data.args must exist
    wanted = [purpose for purpose, name in names.items() if purpose in NEEDED or name != purpose]
    if not (missing := [purpose for purpose in wanted if purpose not in cells.columns]):
        return []
    return [
        f"{path} must have the columns {' and '.join(names[purpose] for purpose in NEEDED)}, but has no "
        f"{' and no '.join(names[purpose] for purpose in missing)}: its columns are "
        f"{shorten_list(cells.header, MAX_ROWS) or 'none'}. Hint: for other names in the first row, set "
        f"{' '.join(f'+data.args.{purpose}=COLUMN' for purpose in missing)}."
    ]


def _wrong_rows(path: Path, folder: Path, cells: Cells, columns: Mapping[str, list[str]]) -> list[str]:
    ragged = [(number, count_noun(count, "cell")) for number, count in cells.ragged]
    if not cells.numbers and not ragged:
        return [
            f"{path} must have a row for each image, but has no rows. Hint: set data.root=FILE.csv to another table."
        ]
    found = rows_message(
        f"{path}: the number of cells must be that of the header ({len(cells.header)}), but is not",
        ragged,
        "correct those rows, and put quotes around text that contains a comma",
    )
    rules: list[tuple[str, Callable[[str], bool], str, str]] = [
        ("path", lambda cell: not cell, "must not be empty, but is", "remove them"),
        ("label", is_missing, "must name a class, but the cell is empty or says that there is no value",
         "remove them. A class that is really called so needs a longer name, such as no_defect"),
        ("split", lambda cell: cell not in SPLITS, "must be train or val, but is not",
         "remove the rows of any other split"),
        # must be neither 0 nor infinite as float32
        ("weight", lambda cell: not 1e-30 < _number(cell) < 1e30, "must be a number > 0, but is not",
         "remove the column"),
    ]  # fmt: skip
    for purpose, is_wrong, rule, hint in rules:
        rows = zip(cells.numbers, columns.get(purpose, ()), strict=purpose in columns)
        wrong = [(number, cell or "empty") for number, cell in rows if is_wrong(cell)]
        found += rows_message(f"{path}: {purpose} {rule}", wrong, f"correct those rows, or {hint}")
    # An image in both splits is a leak; otherwise it has more than one label or weight. Compared as text, because
    # resolving links would take one disk request per image
    first: dict[str, int] = {}
    repeated = []
    for number, name in zip(cells.numbers, columns["path"], strict=True):
        earlier = first.setdefault(os.path.normpath(os.path.join(folder.absolute(), name)), number)  # noqa: PTH118
        if name and earlier != number:
            repeated.append((number, f"{name}, as row {earlier}"))
    rule = f"{path}: an image must have only one row, but is repeated"
    return found + rows_message(rule, repeated, "correct those rows, or remove them")


def _wrong_splits(table: Table, val_fraction: float | None, verb: str) -> list[str]:
    found, has_split = [], table.splits is not None
    if not has_split and val_fraction is None and verb != "evaluate":
        found.append(
            f"{table.file} must have a `split` column (train, val), or data.val_fraction must be the share of each "
            "class that is kept for validation, got neither. Hint: set data.val_fraction=0.1."
        )
    if has_split and val_fraction is not None:
        found.append(
            f"data.val_fraction is {val_fraction}, but {table.file} has a `split` column. Hint: set "
            "data.val_fraction=null."
        )
    elif has_split:
        found += [
            f"{table.file}: split must be {split} in at least one row, but is in no row. Hint: correct that file, or "
            "remove its `split` column."
            for split in (("val",) if verb == "evaluate" else SPLITS)
            if table.paths and not table.labels_of(split)
        ]
    train, val = table.labels_of("train"), table.labels_of("val") if has_split else set[str]()
    if verb == "train" and train and (foreign := sorted(val - train)) and val_fraction is None:
        found.append(
            f"{table.file}: each label of val must also be a label of train, but {len(foreign)} of "
            f"{len(val)} {'is' if len(foreign) == 1 else 'are'} not: {shorten_list(foreign, MAX_ROWS)}. "
            "Hint: correct those rows, or remove them."
        )
    if not found and verb == "train" and len(train) == 1:
        found.append(
            f"{table.file}: the training images must have at least two labels, but all have {shorten_list([*train])}. "
            "Hint: correct the labels, or add images of another class."
        )
    return found


def rows_message(rule: str, wrong: Iterable[tuple[int, str]], hint: str) -> list[str]:
    """Return a message about the rows that break a rule, with their number and the first of them, or an empty list if
    there are none. wrong: (row number, content) of each such row."""
    # a terminal would act on control characters
    texts = [f"row {number} ({printable(what[:MAX_CELL])})" for number, what in wrong]
    return (
        [f"{rule} in {count_noun(len(texts), 'row')}: {shorten_list(texts, MAX_ROWS)}. Hint: {hint}."] if texts else []
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
