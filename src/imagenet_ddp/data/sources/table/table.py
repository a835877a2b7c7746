"""Read a table of images (data=table) and report its mistakes with their row numbers. No torch."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_ddp.data.sources.table.cells import Cells, read_cells
from imagenet_ddp.data.sources.table.files import find_missing
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.paths import describe_path
from imagenet_ddp.system.text import count_noun, shorten_list

COLUMNS = ("path", "label", "split", "weight")
NEEDED = ("path", "label")
SPLITS = ("train", "val")
SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")  # by which a table is recognised; data=table reads any file
MAX_ROWS = 10  # of each kind of mistake that are named


@dataclass(frozen=True)
class Table:
    """The rows of a table without mistakes. labels: names of classes; splits, weights: None if there is no such
    column."""

    file: Path
    numbers: Sequence[int]  # of the rows, as messages name them
    paths: list[str]  # relative to the folder of the file, or absolute
    labels: list[str]
    splits: list[str] | None
    weights: list[float] | None
    note: str  # for the start of the log

    @property
    def folder(self) -> Path:
        return self.file.parent

    def rows_of(self, split: str, verb: str = "train") -> list[int]:
        """Return positions. Without a column split, all rows are training images; in an evaluation, validation
        images."""
        if self.splits is None:
            return list(range(len(self.paths))) if split == ("val" if verb == "evaluate" else "train") else []
        return [position for position, name in enumerate(self.splits) if name == split]


def validate(data: Mapping[str, Any], environ: Mapping[str, str], verb: str = "train") -> list[str]:
    """Report what is wrong in the table, and which files do not exist. data: the resolved data.* keys. verb: evaluate
    needs only the validation images; check reads every image later."""
    try:
        table = read_table(data, environ, verb)
    except ConfigError as error:
        return list(error.mistakes)
    rows: Sequence[int] = range(len(table.paths))
    if verb == "evaluate" and data["val_fraction"] is None:
        rows = table.rows_of("val", verb)
    missing = [] if verb == "check" else find_missing(str(table.folder), [table.paths[row] for row in rows])
    where = describe_path(table.folder)
    return _rows(
        f"{table.file}: path must name a file, below {where} or absolute, but does not",
        [(table.numbers[rows[position]], table.paths[rows[position]]) for position in missing],
        "correct those rows, or put the table into the folder where its paths begin",
    )


def read_table(data: Mapping[str, Any], environ: Mapping[str, str], verb: str = "train") -> Table:
    """Read data.root. Raises ConfigError with all mistakes except files that do not exist."""
    names = _names(data["args"])
    path = _file(data["root"], environ)
    try:
        cells = read_cells(path, names)
    except PermissionError as error:
        raise ConfigError(f"{path} must be readable, but is not. Hint: chmod u+r on it.") from error
    except OSError as error:
        raise ConfigError(
            f"{path} must be readable, but: {error.strerror or error}. Hint: data.root=FILE.csv names another one."
        ) from error
    if found := _missing_columns(path, cells, names):
        raise ConfigError(found)
    columns = {purpose: [cell.strip() for cell in cells.columns[purpose]] for purpose in cells.columns}
    columns["path"] = cells.columns["path"]
    if "split" in columns:
        columns["split"] = [cell.lower() for cell in columns["split"]]
    weights = list(map(_number, columns["weight"])) if "weight" in columns else None
    found = _wrong_rows(path, cells, columns)
    ignored = f"; {shorten_list(cells.ignored)} ignored" if cells.ignored else ""
    note = f"{path}: {count_noun(len(cells.numbers), 'row')}; columns {', '.join(cells.columns)} read{ignored}."
    table = Table(path, cells.numbers, columns["path"], columns["label"], columns.get("split"), weights, note)
    found += _wrong_splits(table, data["val_fraction"], verb)
    if found:
        raise ConfigError(found)
    return table


def _names(args: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of each column, from data.args."""
    if unknown := [key for key in args if key not in COLUMNS]:
        raise ConfigError(
            f"data.args of data=table name its columns {', '.join(COLUMNS)}, got {', '.join(map(str, unknown))}. "
            f"Hint: leave data.args.{unknown[0]} out."
        )
    return {purpose: str(args.get(purpose) or purpose) for purpose in COLUMNS}


def _file(root: str | None, environ: Mapping[str, str]) -> Path:
    if not root:
        raise ConfigError(
            "data.root must be the table of the images, got null. Hint: data.root=FILE.csv, with the columns path and "
            "label."
        )
    path = Path(root)
    if path.is_dir():
        raise ConfigError(
            f"data.root must be a table, but {describe_path(path)} is a folder. Hint: data.root=FILE.csv, or "
            f"data=imagefolder with data.root={root}."
        )
    if not path.exists():
        hint = "data.root=FILE.csv"
        if root.startswith("~"):  # no shell expands ~ after "data.root="
            hint = f"data.root={environ.get('HOME', '/home/me')}{root[1:]}"
        raise ConfigError(f"data.root must be a table, but {describe_path(path)} does not exist. Hint: {hint}.")
    return path


def _missing_columns(path: Path, cells: Cells, names: Mapping[str, str]) -> list[str]:
    missing = [purpose for purpose in NEEDED if purpose not in cells.columns]
    # a column whose name was typed must exist
    missing += [p for p in COLUMNS if p not in NEEDED and names[p] != p and p not in cells.columns]
    if not missing:
        return []
    hint = " ".join(f"+data.args.{purpose}={name}" for purpose, name in zip(missing, cells.ignored, strict=False))
    if len(cells.ignored) < len(missing) or not all(name.isidentifier() for name in cells.ignored[: len(missing)]):
        hint = f"correct those rows: the first one is to name the columns, {','.join(NEEDED)}"
    else:
        hint += " if that is what they hold"
    return [
        f"{path} must have the columns {' and '.join(names[purpose] for purpose in NEEDED)}, but has no "
        f"{' and no '.join(names[purpose] for purpose in missing)}: its columns are "
        f"{shorten_list(cells.header, MAX_ROWS) or 'none'}. Hint: {hint}."
    ]


def _wrong_rows(path: Path, cells: Cells, columns: Mapping[str, list[str]]) -> list[str]:
    ragged = [(number, count_noun(count, "cell")) for number, count in cells.ragged]
    found = _rows(
        f"{path}: a row must have as many cells as the header, {len(cells.header)}, but does not",
        ragged,
        "correct those rows; put quotes around text that contains a comma",
    )
    if not cells.numbers and not ragged:
        return [f"{path} must have a row for each image, but has none. Hint: data.root=FILE.csv names another table."]

    def check(purpose: str, is_wrong: Callable[[str], bool], rule: str, hint: str) -> list[str]:
        shows = purpose not in NEEDED
        rows = zip(cells.numbers, columns[purpose], strict=True)
        wrong = [(number, (cell or "empty") * shows) for number, cell in rows if is_wrong(cell)]
        return _rows(f"{path}: {purpose} {rule}", wrong, f"correct those rows, or {hint}")

    for purpose in NEEDED:
        found += check(purpose, lambda cell: not cell, "must not be empty, but is", "remove them")
        hint = "the row before them: a quote may not be closed"
        found += check(purpose, lambda cell: "\n" in cell, "must be of one line, but is not", hint)
    if "split" in columns:
        hint = "remove those of a third split"
        found += check("split", lambda cell: cell not in SPLITS, "must be train or val, but is not", hint)
    if "weight" in columns:
        # as float32 neither 0 nor infinite
        is_wrong = lambda cell: not 1e-30 < _number(cell) < 1e30  # noqa: E731
        found += check("weight", is_wrong, "must be a number > 0, but is not", "remove the column")
    return found + _repeated(path, cells.numbers, columns)


def _repeated(path: Path, numbers: Sequence[int], columns: Mapping[str, list[str]]) -> list[str]:
    """Report images that occur in several rows: a leak if they are in both splits, otherwise a label or a weight too
    many."""
    first: dict[str, int] = {}
    leaks, others = [], []
    folder, splits = f"{path.parent.absolute()}/", columns.get("split")
    for row, name in enumerate(columns["path"]):
        if not name:
            continue
        # compared as text: resolving links would take one disk request each
        whole = os.path.normpath(name if name.startswith("/") else folder + name)
        earlier = first.setdefault(whole, row)
        if earlier == row:
            continue
        is_leak = splits is not None and splits[earlier] != splits[row]
        (leaks if is_leak else others).append((numbers[row], f"{name}, as row {numbers[earlier]}"))
    hint = "correct those rows, or remove them"
    return [
        *_rows(f"{path}: an image of val must not be in train too, but is", leaks, hint),
        *_rows(f"{path}: an image must have only one row, but is repeated", others, hint),
    ]


def _wrong_splits(table: Table, val_fraction: float | None, verb: str) -> list[str]:
    if table.splits is None:
        if val_fraction is not None or verb == "evaluate":
            return []
        return [
            f"{table.file} must have a column split (train, val), or data.val_fraction must say which share of each "
            "class is kept for validation, got neither. Hint: data.val_fraction=0.1."
        ]
    if val_fraction is not None:
        return [
            f"data.val_fraction is {val_fraction}, but {table.file} has a column split. Hint: set "
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
                f"{table.file}: split must be {split} in some rows, but is in none. Hint: correct those rows, or "
                "remove the column."
            )
    if verb != "evaluate" and classes["train"] and (foreign := sorted(classes["val"] - classes["train"])):
        found.append(
            f"{table.file}: each label of val must be one of train too, but {len(foreign)} of {len(classes['val'])} "
            f"{'is' if len(foreign) == 1 else 'are'} not: {shorten_list(foreign, MAX_ROWS)}. Hint: correct those rows, "
            "or remove them."
        )
    return found


def _rows(rule: str, wrong: Iterable[tuple[int, str]], hint: str) -> list[str]:
    """Return a sentence on the rows that break a rule: the first ones, and how many there are. wrong: (row number, its
    content)."""
    texts = [f"row {number}" + (f" ({what})" if what else "") for number, what in wrong]
    if not texts:
        return []
    return [f"{rule} in {count_noun(len(texts), 'row')}: {shorten_list(texts, MAX_ROWS)}. Hint: {hint}."]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
