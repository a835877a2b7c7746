"""Read the cells of a table of images: CSV with the standard library, Parquet with pyarrow. No torch."""

import csv
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import first_line, install

PARQUET = (".parquet", ".pq")
_DELIMITERS = ",;\t"


@dataclass
class Cells:
    """The text of the wanted columns, row by row.

    columns: those found in the table, by purpose. ignored: names of its other columns. numbers: the number of each row
    as in a spreadsheet: the header of a CSV is row 1. ragged: (row, number of cells) of the rows that have more or
    fewer cells than the header; they are left out of columns and numbers.
    """

    header: list[str]
    columns: dict[str, list[str]]
    ignored: list[str]
    numbers: Sequence[int]
    ragged: list[tuple[int, int]] = field(default_factory=list)


def read_cells(path: Path, names: Mapping[str, str]) -> Cells:
    """Read a table's columns. names: purpose -> column name, compared without regard to case. Raises ConfigError if
    the file is not a table, and OSError if it cannot be read."""
    read = _read_parquet if path.suffix.lower() in PARQUET else _read_csv
    return read(path, names)


def _read_csv(path: Path, names: Mapping[str, str]) -> Cells:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max(_DELIMITERS, key=first.count)  # a spreadsheet of a country with decimal commas writes ;
            rows = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
            header = [cell.strip() for cell in next(rows, [])]
            positions = _find(header, names)
            columns: dict[str, list[str]] = {purpose: [] for purpose in positions}
            wanted = [(columns[purpose].append, position) for purpose, position in positions.items()]
            numbers, ragged, same = array("q"), [], {}
            for number, row in enumerate(rows, 2):
                if len(row) != len(header):
                    if row:  # else an empty line
                        ragged.append((number, len(row)))
                    continue
                numbers.append(number)
                for append, position in wanted:
                    cell = row[position]
                    append(same.setdefault(cell, cell) if len(cell) < 32 else cell)  # not a million copies of a label
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} must be a CSV file in UTF-8, or a Parquet file named *.parquet, but cannot be read as "
            f"UTF-8 ({error.reason} at byte {error.start}). Hint: save it as CSV in UTF-8, and set data.root=FILE.csv."
        ) from error
    except csv.Error as error:
        raise ConfigError(
            f"{path} must be a CSV file, but cannot be read as one: {error}. Hint: is a quote not closed? Save it as "
            "CSV in UTF-8, and set data.root=FILE.csv."
        ) from error
    return Cells(header, columns, _others(header, positions), numbers, ragged)


def _read_parquet(path: Path, names: Mapping[str, str]) -> Cells:
    try:
        import pyarrow.parquet as parquet  # an extra of this project
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{path} is a Parquet file, which needs pyarrow, which is not installed. Hint: "
            f"{install('imagenet_ddp[parquet]')}, or save it as CSV."
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            header = list(file.schema_arrow.names)
            positions = _find(header, names)
            table = file.read(columns=[header[position] for position in positions.values()])
            columns = {
                purpose: ["" if value is None else str(value) for value in table[header[position]].to_pylist()]
                for purpose, position in positions.items()
            }
            num_rows = file.metadata.num_rows
    except OSError:
        raise
    except Exception as error:  # pyarrow derives its errors from several
        raise ConfigError(
            f"{path} must be a Parquet file, but cannot be read as one: {first_line(error)}. Hint: write it again, or "
            "save it as CSV."
        ) from error
    return Cells(header, columns, _others(header, positions), range(1, num_rows + 1))


def _find(header: Sequence[str], names: Mapping[str, str]) -> dict[str, int]:
    """Return the positions of those wanted columns that exist."""
    known = {name.lower(): position for position, name in reversed(list(enumerate(header)))}
    return {purpose: known[name.lower()] for purpose, name in names.items() if name.lower() in known}


def _others(header: Sequence[str], positions: Mapping[str, int]) -> list[str]:
    return [name for position, name in enumerate(header) if position not in positions.values()]
