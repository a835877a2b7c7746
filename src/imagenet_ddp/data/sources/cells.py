"""Read the cells of a table of images: CSV with the standard library, Parquet with pyarrow."""

import csv
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagenet_ddp.data.sources.base import one_form
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import first_line, missing_package

PARQUET = (".parquet", ".pq")
_DELIMITERS = ",;\t"
# What spreadsheets, pandas and databases write into a cell that has no value
_NO_LABEL = re.compile(r"|-?nan|none|null|nil|undefined|\(null\)|\\n|#?n/?a|<na>|nat|#[a-z/0]+[!?]")
_WHOLE = re.compile(r"(\d+)(\.0+)?", re.ASCII)


@dataclass
class Cells:
    """The text of the wanted columns, row by row.

    columns: purpose -> cells, for the wanted columns that the table has. ignored: names of its other columns. numbers:
    the number of each row, as a spreadsheet shows it (the header of a CSV is row 1). ragged: (row number, number of
    cells) of the rows that have more or fewer cells than the header, which are left out of columns and numbers.
    """

    header: list[str]
    columns: dict[str, list[str]]
    ignored: list[str]
    numbers: Sequence[int]
    ragged: list[tuple[int, int]] = field(default_factory=list)


def read_cells(path: Path, names: Mapping[str, str]) -> Cells:
    """Read the columns of a table. names: purpose -> column name, which is not case-sensitive. Raises ConfigError if
    the file is not a table, and OSError if it cannot be read."""
    read, kind = (_read_parquet, "Parquet") if path.suffix.lower() in PARQUET else (_read_csv, "CSV")
    try:
        return read(path, names)
    except (OSError, ConfigError):
        raise
    except Exception as error:  # UnicodeDecodeError, csv.Error, and pyarrow's errors of several types
        raise ConfigError(
            f"{path} must be a {kind} file, but cannot be read as one: {first_line(error)}. Hint: save the table as "
            "CSV in UTF-8 with all quotes closed, and set data.root=FILE.csv."
        ) from error


def _read_csv(path: Path, names: Mapping[str, str]) -> Cells:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        file.seek(0)
        delimiter = max(_DELIMITERS, key=first.count)  # in countries with decimal commas, spreadsheets write ;
        # strict: a quote that is not closed is an error, and does not swallow the rows below
        rows = csv.reader(file, delimiter=delimiter, skipinitialspace=True, strict=True)
        header = [cell.strip() for cell in next(rows, [])]
        positions = _find(header, names)
        columns: dict[str, list[str]] = {purpose: [] for purpose in positions}
        numbers, ragged = [], []
        for number, row in enumerate(rows, 2):
            if len(row) == len(header):
                numbers.append(number)
                for purpose, position in positions.items():
                    columns[purpose].append(sys.intern(row[position]))  # a million rows share one copy of each label
            elif row:  # empty lines are skipped
                ragged.append((number, len(row)))
    return Cells(header, columns, _others(header, positions), numbers, ragged)


def _read_parquet(path: Path, names: Mapping[str, str]) -> Cells:
    if missing := missing_package(
        str(path), "pyarrow", requirement="imagenet_ddp[parquet]", instead="save the table as CSV"
    ):
        raise ConfigError(missing)
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path) as file:
        header = list(file.schema_arrow.names)
        positions = _find(header, names)
        table = file.read(columns=[header[position] for position in positions.values()])
        columns = {
            purpose: ["" if value is None else str(value) for value in table[header[position]].to_pylist()]
            for purpose, position in positions.items()
        }
        return Cells(header, columns, _others(header, positions), range(1, file.metadata.num_rows + 1))


def _find(header: Sequence[str], names: Mapping[str, str]) -> dict[str, int]:
    """Return purpose -> position of the wanted columns that exist."""
    known = {name.lower(): position for position, name in reversed(list(enumerate(header)))}
    return {purpose: known[name.lower()] for purpose, name in names.items() if name.lower() in known}


def _others(header: Sequence[str], positions: Mapping[str, int]) -> list[str]:
    return [name for position, name in enumerate(header) if position not in positions.values()]


def is_missing(label: str) -> bool:
    """Return whether a cell is empty or has a word for "no value", in any case."""
    return _NO_LABEL.fullmatch(label.strip().casefold()) is not None


def class_names_of(labels: list[str]) -> list[str]:
    """Return the class names of a table's labels. If all labels are whole numbers, 1.0 is 1: a column of numbers with
    empty cells is written that way."""
    names = {label: one_form(label) for label in set(labels)}
    matches = {label: _WHOLE.fullmatch(name) for label, name in names.items() if not is_missing(name)}
    if all(matches.values()) and any(match[2] for match in matches.values() if match):
        names |= {label: match[1] for label, match in matches.items() if match}
    return [names[label] for label in labels]
