"""Read the rows of a table of images, and report their mistakes with the row numbers."""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_ddp.data.sources.cells import Cells, class_names_of, is_missing, read_cells
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.paths import describe_path
from imagenet_ddp.system.text import count_noun, shorten_list

COLUMNS = ("path", "label", "split", "weight")
NEEDED = ("path", "label")
SPLITS = ("train", "val")
MAX_ROWS = 10  # number of rows named for each kind of mistake
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


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


def read_table(data: Mapping[str, Any], environ: Mapping[str, str], verb: str = "train") -> Table:
    """Read data.root. Raises ConfigError with all mistakes except files that do not exist."""
    names = _names(data["args"])
    path = _file(data["root"], environ)
    folder = Path(data["images_dir"]) if data.get("images_dir") else path.parent
    if not folder.is_dir():
        raise ConfigError(
            f"data.images_dir must be the folder of the images, but {describe_path(folder)} is not a folder. Hint: set "
            "data.images_dir=FOLDER, or leave it out if the paths are relative to the table's folder."
        )
    try:
        cells = read_cells(path, names)
    except PermissionError as error:
        raise ConfigError(f"{path} must be readable, but is not. Hint: run chmod u+r on it.") from error
    except OSError as error:
        raise ConfigError(
            f"{path} must be readable, but reading it failed: {error.strerror or error}. Hint: check that its disk is "
            "still mounted, or set data.root=FILE.csv to another table."
        ) from error
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
    found += _wrong_splits(table, data["val_fraction"], verb) or (_one_class(table) if verb == "train" else [])
    if found:
        raise ConfigError(found)
    return table


def _names(args: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of each column, from data.args."""
    if unknown := [key for key in args if key not in COLUMNS]:
        raise ConfigError(
            f"data.args of data=table must be among {', '.join(COLUMNS)}, got {', '.join(map(str, unknown))}. "
            f"Hint: leave data.args.{unknown[0]} out."
        )
    return {purpose: str(args.get(purpose) or purpose) for purpose in COLUMNS}


def _file(root: str | None, environ: Mapping[str, str]) -> Path:
    if not root:
        raise ConfigError(
            "data.root must be the table of the images, got null. Hint: set data.root=FILE.csv to a table with the "
            "columns path and label."
        )
    path = Path(root)
    if path.is_dir():
        raise ConfigError(
            f"data.root must be a table, but {describe_path(path)} is a folder. Hint: set data.root=FILE.csv, or set "
            f"data=imagefolder with data.root={root}."
        )
    if not path.exists():
        hint = "data.root=FILE.csv"
        if root.startswith("~"):  # no shell expands ~ after "data.root="
            hint = f"data.root={environ.get('HOME', '/home/me')}{root[1:]}"
        raise ConfigError(f"data.root must be a table, but {describe_path(path)} does not exist. Hint: set {hint}.")
    if not path.is_file():  # reading a pipe might never end
        raise ConfigError(
            f"data.root must be a table, but {describe_path(path)} is not a regular file. Hint: set data.root=FILE.csv."
        )
    return path


def _missing_columns(path: Path, cells: Cells, names: Mapping[str, str]) -> list[str]:
    missing = [purpose for purpose in NEEDED if purpose not in cells.columns]
    # a column whose name is set in data.args must exist
    missing += [p for p in COLUMNS if p not in NEEDED and names[p] != p and p not in cells.columns]
    if not missing:
        return []
    hint = " ".join(f"+data.args.{purpose}={name}" for purpose, name in zip(missing, cells.ignored, strict=False))
    if len(cells.ignored) < len(missing) or not all(name.isidentifier() for name in cells.ignored[: len(missing)]):
        hint = f"correct that file: its first row must name the columns, {','.join(NEEDED)}"
    else:
        hint = f"set {hint} if {'this is the right column' if len(missing) == 1 else 'these are the right columns'}"
    return [
        f"{path} must have the columns {' and '.join(names[purpose] for purpose in NEEDED)}, but has no "
        f"{' and no '.join(names[purpose] for purpose in missing)}: its columns are "
        f"{shorten_list(cells.header, MAX_ROWS) or 'none'}. Hint: {hint}."
    ]


def _wrong_rows(path: Path, folder: Path, cells: Cells, columns: Mapping[str, list[str]]) -> list[str]:
    ragged = [(number, count_noun(count, "cell")) for number, count in cells.ragged]
    found = rows_message(
        f"{path}: the number of cells must be that of the header ({len(cells.header)}), but is not",
        ragged,
        "correct those rows, and put quotes around text that contains a comma",
    )
    if not cells.numbers and not ragged:
        return [
            f"{path} must have a row for each image, but has no rows. Hint: set data.root=FILE.csv to another table."
        ]

    def check(purpose: str, is_wrong: Callable[[str], bool], rule: str, hint: str) -> list[str]:
        shows = purpose != "path"
        rows = zip(cells.numbers, columns[purpose], strict=True)
        wrong = [(number, (cell or "empty") * shows) for number, cell in rows if is_wrong(cell)]
        return rows_message(f"{path}: {purpose} {rule}", wrong, f"correct those rows, or {hint}")

    found += check("path", lambda cell: not cell, "must not be empty, but is", "remove them")
    found += check(
        "label",
        is_missing,
        "must name a class, but the cell is empty or says that there is no value",
        "remove them. A class that is really called so needs a longer name, such as no_defect",
    )
    for purpose in NEEDED:
        rows = zip(cells.numbers, columns[purpose], strict=True)
        found += rows_message(
            f"{path}: {purpose} must be a single line without control characters, but is not",
            [(number, match[0]) for number, cell in rows if (match := _CONTROL.search(cell))],
            "correct those rows, or the row before them, where a closing quote may be missing",
        )
    if "split" in columns:
        hint = "remove the rows of any other split"
        found += check("split", lambda cell: cell not in SPLITS, "must be train or val, but is not", hint)
    if "weight" in columns:
        # must be neither 0 nor infinite as float32
        is_wrong = lambda cell: not 1e-30 < _number(cell) < 1e30  # noqa: E731
        found += check("weight", is_wrong, "must be a number > 0, but is not", "remove the column")
    return found + _repeated(path, folder, cells.numbers, columns)


def _repeated(path: Path, images_dir: Path, numbers: Sequence[int], columns: Mapping[str, list[str]]) -> list[str]:
    """Return messages about images that occur in several rows. An image in both splits is a leak; otherwise it has more
    than one label or weight."""
    first: dict[str, int] = {}
    leaks, others = [], []
    folder, splits = f"{images_dir.absolute()}/", columns.get("split")
    for row, name in enumerate(columns["path"]):
        if not name:
            continue
        # compared as text, because resolving links would take one disk request per image
        whole = os.path.normpath(name if name.startswith("/") else folder + name)
        earlier = first.setdefault(whole, row)
        if earlier == row:
            continue
        is_leak = splits is not None and splits[earlier] != splits[row]
        (leaks if is_leak else others).append((numbers[row], f"{name}, as row {numbers[earlier]}"))
    hint = "correct those rows, or remove them"
    return [
        *rows_message(f"{path}: an image of val must not also be in train, but is", leaks, hint),
        *rows_message(f"{path}: an image must have only one row, but is repeated", others, hint),
    ]


def _wrong_splits(table: Table, val_fraction: float | None, verb: str) -> list[str]:
    if table.splits is None:
        if val_fraction is not None or verb == "evaluate":
            return []
        return [
            f"{table.file} must have a `split` column (train, val), or data.val_fraction must be the share of each "
            "class that is kept for validation, got neither. Hint: set data.val_fraction=0.1."
        ]
    if val_fraction is not None:
        return [
            f"data.val_fraction is {val_fraction}, but {table.file} has a `split` column. Hint: set "
            "data.val_fraction=null."
        ]
    found = []
    classes = {
        split: {label for label, name in zip(table.labels, table.splits, strict=True) if name == split}
        for split in SPLITS
    }
    for split in ("val",) if verb == "evaluate" else SPLITS:
        if table.paths and not classes[split]:
            found.append(
                f"{table.file}: split must be {split} in at least one row, but is in no row. Hint: correct that file, "
                "or remove its `split` column."
            )
    if verb == "train" and classes["train"] and (foreign := sorted(classes["val"] - classes["train"])):
        found.append(
            f"{table.file}: each label of val must also be a label of train, but {len(foreign)} of "
            f"{len(classes['val'])} {'is' if len(foreign) == 1 else 'are'} not: {shorten_list(foreign, MAX_ROWS)}. "
            "Hint: correct those rows, or remove them."
        )
    return found


def _one_class(table: Table) -> list[str]:
    splits = table.splits or ["train"] * len(table.labels)
    labels = {label for label, split in zip(table.labels, splits, strict=True) if split == "train"}
    if len(labels) != 1:
        return []
    return [
        f"{table.file}: the training images must have at least two labels, but all have {shorten_list([*labels])}. "
        "Hint: correct the labels, or add images of another class."
    ]


def rows_message(rule: str, wrong: Iterable[tuple[int, str]], hint: str) -> list[str]:
    """Return a message about the rows that break a rule, with their number and the first of them, or an empty list if
    there are none. wrong: (row number, content) of each such row."""
    texts = [f"row {number}" + (f" ({_escaped(what)})" if what else "") for number, what in wrong]
    if not texts:
        return []
    return [f"{rule} in {count_noun(len(texts), 'row')}: {shorten_list(texts, MAX_ROWS)}. Hint: {hint}."]


def _escaped(text: str) -> str:
    """Return the text with control characters as \\n, \\x00, ..., which a terminal would act on."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
