"""Read the rows of a table of images, and report all mistakes in them at once, with the row numbers."""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from imagenet_ddp.config.schema.data import TABLE_SUFFIXES, TableData
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.data.sources.base import one_form
from imagenet_ddp.data.sources.cells import Cells, find_columns, read_cells
from imagenet_ddp.data.sources.layout import TEST, TRAIN, VAL
from imagenet_ddp.data.sources.walk import IMAGE_EXTENSIONS
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix, Mistake, did_you_mean, setting, without
from imagenet_ddp.system.files import beside, describe_path
from imagenet_ddp.system.text import class_list, count_noun, printable, shorten_list

COLUMNS = ("path", "label", "split", "weight", "group")
NEEDED = ("path", "label")
SPLITS = ("train", "val")
TEST_SPLIT = "test"
MAX_ROWS = 10  # number of rows named for each kind of mistake
MAX_CELL = 300  # characters of a cell shown in a message
# What spreadsheets, pandas and databases write into a cell that has no value
_NO_LABEL = re.compile(r"|-?nan|none|null|nil|undefined|\(null\)|\\n|#?n/?a|<na>|nat|#[a-z/0]+[!?]")
_WHOLE = re.compile(r"(\d+)(\.0+)?", re.ASCII)


class Row(NamedTuple):
    number: int  # as a spreadsheet shows it
    path: str  # relative to the folder of the images, or absolute
    label: str  # class name, or several
    split: str
    weight: str
    group: str  # name of what several images show, such as a patient; "": none

    def labels(self, data: TableData) -> list[str]:
        if data.labels == "one":
            return [self.label]
        return [name for part in re.split("[;|]", self.label) if (name := part.strip())]


@dataclass(frozen=True)
class Table:
    """The rows of a table without mistakes."""

    file: Path
    folder: Path  # of the images
    rows: list[Row]
    columns: Sequence[str]  # those of COLUMNS that the table has
    note: str  # sentences for the start of the log

    def of_split(self, name: str) -> list[Row]:
        return [row for row in self.rows if row.split == name]


def _is_missing(label: str) -> bool:
    """Return whether a cell is empty or has a word for "no value", in any case."""
    return _NO_LABEL.fullmatch(label.strip().casefold()) is not None


def _class_names(labels: list[str]) -> list[str]:
    """Return the class names of a table's labels. If all labels are whole numbers, 1.0 is 1: a column of numbers with
    empty cells is written that way."""
    names = {label: one_form(label) for label in set(labels)}
    matches = {label: _WHOLE.fullmatch(name) for label, name in names.items() if not _is_missing(name)}
    if all(matches.values()) and any(match[2] for match in matches.values() if match):
        names |= {label: match[1] for label, match in matches.items() if match}
    return [names[label] for label in labels]


def read_table(data: TableData, purpose: Purpose = Purpose.TRAIN) -> Table:
    """Read data.root. Without a `split` column, all rows are training images, or validation images to evaluate.
    Raises ConfigError with all mistakes except files that do not exist."""
    if unknown := [key for key in data.args if key not in COLUMNS]:
        what = f"data.args of data=table must be among {', '.join(COLUMNS)}, got {', '.join(map(str, unknown))}"
        raise ConfigError(Mistake(what, ("data.args",), (without(f"data.args.{unknown[0]}"),)))
    path, folder = _file_and_folder(data)
    names = {purpose: str(data.args.get(purpose) or purpose) for purpose in COLUMNS}
    cells = read_cells(path, names)
    require_columns(path, cells, names)
    default = {
        "split": "val" if not purpose.needs_train and data.val_fraction is None else "train",
        "weight": "1",
        "group": "",
    }
    columns = {key: [value] * len(cells.numbers) for key, value in default.items()}
    columns |= {purpose: [cell.strip() for cell in column] for purpose, column in cells.columns.items()}
    paths, labels, splits = cells.columns["path"], _class_names(columns["label"]), _splits(columns["split"])
    rows = list(map(Row, cells.numbers, paths, labels, splits, columns["weight"], columns["group"]))
    num_rows = len(rows)
    rows = [row for row in rows if row.split != TEST_SPLIT]
    used = find_columns(path, cells.header, names).values()
    ignored = [name for position, name in enumerate(cells.header) if position not in used]
    note = f"{path}: {count_noun(num_rows, 'row')}. Columns read: {', '.join(cells.columns)}."
    if unused := num_rows - len(rows):
        note += f" Left out: {count_noun(unused, 'row')} of split test, because others are for validation."
    note += f" Columns ignored: {shorten_list(ignored)}." if ignored else ""
    table = Table(path, folder, rows, list(cells.columns), note)
    found = rows_message(
        f"{path}: the number of cells must be that of the header ({len(cells.header)}), but is not",
        [(number, count_noun(count, "cell")) for number, count in cells.ragged],
        "correct those rows, and put quotes around text that contains a comma",
    )
    if found := found + _wrong_rows(table, data) + _wrong_splits(table, data, purpose):
        raise ConfigError(found)
    return table


def _file_and_folder(data: TableData) -> tuple[Path, Path]:
    """Return the table, and the folder of its images. Raises ConfigError if one of them is not there."""
    path = Path(data.root or "")
    if not path.is_file():  # reading a pipe might never end
        got = f"but {describe_path(path)} is not a file" if data.root else "got null"
        ways = (setting("data.root=FILE.csv", aim="with path and label"),)
        if data.root and path.is_dir():
            ways = setting("data.root=FILE.csv"), setting("data=imagefolder", f"data.root={path}")
        elif near := beside(path, lambda each: each.suffix.lower() in TABLE_SUFFIXES):
            ways = (did_you_mean(f"data.root={near}"),)
        raise ConfigError(Mistake(f"data.root must be the table of the images, {got}", ("data.root",), ways))
    folder = Path(data.images_dir) if data.images_dir else path.parent
    if not folder.is_dir():
        key = "data.images_dir"
        what = f"{key} must be the folder of the images, but {describe_path(folder)} is not a folder"
        leave_out = Fix(without=(key,), aim="if the paths are relative to the table's folder")
        raise ConfigError(Mistake(what, (key,), (setting(f"{key}=FOLDER"), leave_out)))
    return path, folder


def require_columns(path: Path, cells: Cells, names: Mapping[str, str]) -> None:
    """Raise ConfigError if a table lacks a column: one that is needed, or whose name is set in data.args."""
    wanted = [purpose for purpose, name in names.items() if purpose in NEEDED or name != purpose]
    if missing := [purpose for purpose in wanted if purpose not in cells.columns]:
        if any(cell.startswith("#") or Path(cell).suffix.lower() in IMAGE_EXTENSIONS for cell in cells.header):
            first = printable(shorten_list(cells.header))[:MAX_CELL]
            wanted_row = ",".join(names[key] for key in NEEDED)
            raise ConfigError(
                f"{path} must begin with a row of column names, but begins with {first}. Hint: remove comments above "
                f"that row, or write it: {wanted_row}."
            )
        raise ConfigError(
            f"{path} must have the columns {' and '.join(names[purpose] for purpose in NEEDED)}, but has no "
            f"{' and no '.join(names[purpose] for purpose in missing)}: its columns are "
            f"{shorten_list(cells.header, MAX_ROWS) or 'none'}. Hint: for other names in the first row, set "
            f"{' '.join(f'+data.args.{purpose}=COLUMN' for purpose in missing)}."
        )


def _splits(cells: list[str]) -> list[str]:
    """Return the split of each row: train, val, or a word that is neither. The usual other names count, as for folders:
    test is val if there is no other."""
    names = {cell: cell.lower() for cell in set(cells)}
    kinds = ((TRAIN, "train"), (VAL, "val"), (TEST, TEST_SPLIT))
    kind_of = {
        cell: next((kind for names, kind in kinds if names.fullmatch(name)), name) for cell, name in names.items()
    }
    if "val" not in kind_of.values():
        kind_of = {cell: "val" if kind == TEST_SPLIT else kind for cell, kind in kind_of.items()}
    return [kind_of[cell] for cell in cells]


def _wrong_rows(table: Table, data: TableData) -> list[str]:
    found, may_be_empty = [], data.labels == "several"
    rules: list[tuple[str, Callable[[str], bool], str, str]] = [
        ("path", lambda cell: not cell, "must not be empty, but is", "remove them"),
        ("label", lambda cell: _is_missing(cell) and not (may_be_empty and not cell),
         "must name a class, but the cell is empty or says that there is no value",
         "remove them. A class that is really called so needs a longer name, such as no_defect"),
        ("label", lambda cell: any(char < " " for char in cell),
         "must be a single line without control characters, but is not",
         "the rows before them, where a quote may not be closed"),
        ("split", lambda cell: cell not in SPLITS, "must be train or val, but is not",
         "remove the rows of any other split"),
        # must be neither 0 nor infinite as float32
        ("weight", lambda cell: not 1e-30 < _number(cell) < 1e30, "must be a number > 0, but is not",
         "remove the column"),
    ]  # fmt: skip
    for purpose, is_wrong, rule, hint in rules:
        wrong = [(row.number, cell or "empty") for row in table.rows if is_wrong(cell := getattr(row, purpose))]
        found += rows_message(f"{table.file}: {purpose} {rule}", wrong, f"correct those rows, or {hint}")
    # An image in both splits is a leak; otherwise it has more than one label or weight. Compared as text, because
    # resolving links would take one disk request per image
    first: dict[str, int] = {}
    repeated, folder = [], table.folder.absolute()
    for row in table.rows:
        earlier = first.setdefault(os.path.normpath(os.path.join(folder, row.path)), row.number)  # noqa: PTH118
        if row.path and earlier != row.number:
            repeated.append((row.number, f"{row.path}, as row {earlier}"))
    rule = f"{table.file}: an image must have only one row, but is repeated"
    return found + rows_message(rule, repeated, "correct those rows, or remove them")


def _wrong_splits(table: Table, data: TableData, purpose: Purpose) -> list[str | Mistake]:
    val_fraction = data.val_fraction
    if val_fraction is not None and "split" in table.columns:
        what = f"data.val_fraction is {val_fraction}, but {table.file} has a `split` column"
        return [Mistake(what, ("data.val_fraction", "data.root"), (setting("data.val_fraction=null"),))]
    needed = ("train",) if val_fraction is not None else purpose.splits
    found: list[str | Mistake] = [
        f"{table.file} must have rows whose split is {name}, but has none. Hint: correct its column `split`, or leave "
        "it out and set data.val_fraction=0.1, the share of each class that is kept for validation."
        for name in needed
        if not table.of_split(name)
    ]
    if found or not purpose.needs_train:
        return found
    train, val = ({label for row in table.of_split(name) for label in row.labels(data)} for name in SPLITS)
    if foreign := val - train:
        found.append(
            f"{table.file}: each label of val must also be a label of train, but {len(foreign)} of "
            f"{len(val)} {'is' if len(foreign) == 1 else 'are'} not: {class_list(foreign, MAX_ROWS)}. "
            "Hint: correct those rows, or remove them."
        )
    elif len(train) == 1:
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
    message = f"{rule} in {count_noun(len(texts), 'row')}: {shorten_list(texts, MAX_ROWS)}. Hint: {hint}."
    return [message] if texts else []


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
