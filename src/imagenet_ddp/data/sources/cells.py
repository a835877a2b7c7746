"""Read the columns of a CSV or Parquet file, as text, and replace cells of a CSV file."""

import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix
from imagenet_ddp.system.packages import missing_package
from imagenet_ddp.system.text import first_line

PARQUET = (".parquet", ".pq")
BATCH_ROWS = 256  # of a Parquet file that are decoded at a time
MOST_BYTES = 2**14  # of a row in it, in the mean of these


@dataclass
class Cells:
    """The text of the wanted columns, row by row.

    columns: purpose -> cells, for the wanted columns that the table has. numbers: the number of each row, as a
    spreadsheet shows it (the header of a CSV is row 1). ragged: (row number, number of cells) of the rows that have
    more or fewer cells than the header, which are left out of columns and numbers.
    """

    header: list[str]
    columns: dict[str, list[str]]
    numbers: Sequence[int]
    ragged: list[tuple[int, int]] = field(default_factory=list)


def read_cells(path: Path, names: Mapping[str, str], key: str = "data.root") -> Cells:
    """Read the columns of a table. names: purpose -> column name, which is not case-sensitive. key: the option that
    names the file. Raises ConfigError if the file is not a table, and OSError if it cannot be read."""
    read, kind = (_read_parquet, "Parquet") if path.suffix.lower() in PARQUET else (_read_csv, "CSV")
    try:
        return read(path, names, key)
    except (OSError, ConfigError):
        raise
    except Exception as error:  # UnicodeDecodeError, csv.Error, and pyarrow's errors of several types
        raise ConfigError(
            f"{path} must be a {kind} file, but cannot be read as one: {first_line(error)}. Hint: save the table as "
            f"CSV in UTF-8 with all quotes closed, and set {key}=FILE.csv. In Excel: Save as, CSV UTF-8; in "
            "LibreOffice: Save as, Edit filter settings, Unicode (UTF-8)."
        ) from error


def _read_csv(path: Path, names: Mapping[str, str], key: str) -> Cells:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        file.seek(0)
        rows = _rows(file, _delimiter(first))
        header = [cell.strip() for cell in next(rows, [])]
        positions = find_columns(path, header, names, key)
        columns: dict[str, list[str]] = {purpose: [] for purpose in positions}
        numbers, ragged = [], []
        for number, row in enumerate(rows, 2):
            if len(row) == len(header):
                numbers.append(number)
                for purpose, position in positions.items():
                    columns[purpose].append(sys.intern(row[position]))  # a million rows share one copy of each label
            elif row:  # empty lines are skipped
                ragged.append((number, len(row)))
    return Cells(header, columns, numbers, ragged)


def _delimiter(first: str) -> str:
    return max(",;\t", key=first.count)  # in countries with decimal commas, spreadsheets write ;


def _rows(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    # strict: a quote that is not closed is an error, and does not swallow the rows below
    return csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)


class CsvText:
    """The text of a CSV file, in which cells can be replaced while all other bytes stay.

    rows: of each row, the header first, the cells as they are written, with their quotes and blanks.
    """

    def __init__(self, text: str):
        end = self._delimiter = _delimiter(text.partition("\n")[0])
        self.rows, self._ends = [list[str]()], list[str]()
        cell = rf'(?: *"[^"]*(?:""[^"]*)*"|[^{end}\r\n]*)'
        for written, after in re.findall(rf"({cell})({end}|\r\n?|\n|\Z)", text):
            self.rows[-1].append(written)
            if after != end:
                self._ends.append(after)
                self.rows.append([])

    def __str__(self) -> str:
        return "".join(map("".join, zip(map(self._delimiter.join, self.rows), self._ends, strict=False)))

    def written(self, value: str, like: str) -> str:
        """Return a value as it is written in place of the cell `like`: with its quotes."""
        text, is_quoted = io.StringIO(), like.lstrip(" ").startswith('"')
        quoting = csv.QUOTE_ALL if is_quoted else csv.QUOTE_MINIMAL
        csv.writer(text, delimiter=self._delimiter, lineterminator="", quoting=quoting).writerow([value])
        return text.getvalue()

    def values(self) -> list[list[str]]:
        """Return the cells as text, row by row."""
        return [*_rows(io.StringIO(str(self), newline=""), self._delimiter)]


def _read_parquet(path: Path, names: Mapping[str, str], key: str) -> Cells:
    if missing := missing_package(str(path), "pyarrow", instead=Fix(said="save the table as CSV")):
        raise ConfigError(missing)
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path) as file:
        header = list(file.schema_arrow.names)
        positions = find_columns(path, header, names, key)
        columns: dict[str, list[str]] = {purpose: [] for purpose in positions}
        # a small file may repeat one long text in all rows
        for batch in file.iter_batches(BATCH_ROWS, columns=[header[position] for position in positions.values()]):
            if batch.nbytes > MOST_BYTES * BATCH_ROWS:
                raise ValueError(f"its rows have more than {MOST_BYTES:,} bytes")
            for purpose, position in positions.items():
                values = batch.column(header[position]).to_pylist()
                columns[purpose] += [sys.intern("" if value is None else str(value)) for value in values]
        return Cells(header, columns, range(1, file.metadata.num_rows + 1))


def find_columns(path: Path, header: Sequence[str], names: Mapping[str, str], key: str = "data.root") -> dict[str, int]:
    """Return purpose -> position of the wanted columns that exist. key: as in read_cells. Raises ConfigError if
    there are two of one name."""
    known = {name.lower(): position for position, name in enumerate(header)}
    counts = Counter(name.lower() for name in header)
    if several := {purpose: name for purpose, name in names.items() if counts[name.lower()] > 1}:
        purpose, name = next(iter(several.items()))
        hint = "give all but one another name in the first row"
        if key == "data.root":
            hint = (
                f"give the right one another name in the first row, such as {name}_used, and set "
                f"+data.args.{purpose}={name}_used"
            )
        raise ConfigError(
            f"{path} must have one column of each name, but has {counts[name.lower()]} columns {name}. Hint: {hint}."
        )
    return {purpose: known[name.lower()] for purpose, name in names.items() if name.lower() in known}
