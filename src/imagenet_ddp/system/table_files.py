"""Write the tables that people read: CSV that spreadsheets open, and Excel files. Files that programs read
(metrics.csv) are written by files.csv_bytes."""

import csv
import io
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

from imagenet_ddp.system.packages import missing_package

# By the first bytes, spreadsheets recognise UTF-8; without them, they show Ã© for é.
BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t"}  # values of csv_delimiter
SUFFIXES = {"csv": (), "jsonl": (".jsonl", ".ndjson"), "xlsx": (".xlsx",)}  # csv: any other
NOT_WRITTEN = (".xls", ".xlsm", ".xlsb", ".ods", ".json", ".parquet", ".pq", ".feather", ".html")
MOST_ROWS = 2**20 - 1  # of an Excel sheet, below its header

WriteRow = Callable[[Sequence[Any]], object]


def table_bytes(head: Sequence[str], rows: Iterable[Sequence[Any]], delimiter: str = "comma") -> bytes:
    """Return the content of a CSV file for people. delimiter: one of DELIMITERS. Bytes in file names that are not valid
    text become backslash escapes, and None becomes an empty cell."""
    text = io.StringIO(newline="")
    text.write(BOM)
    csv.writer(text, delimiter=DELIMITERS[delimiter], lineterminator="\n").writerows([head, *rows])
    return text.getvalue().encode(errors="backslashreplace")


def format_of(option: str, out: str | None) -> str:
    """Return csv, jsonl or xlsx. option: as typed, or auto for the format that the suffix of the file `out` names."""
    if option != "auto":
        return option
    suffix = Path(out or "").suffix.lower()
    return next((name for name, suffixes in SUFFIXES.items() if suffix in suffixes), "csv")


def validate(option: str, out: str | None) -> list[str]:
    """Return a message if the file `out` cannot be written in this format, or would have the suffix of another."""
    suffix, chosen = Path(out or "").suffix.lower(), format_of(option, out)
    named = format_of("auto", out)
    if suffix in NOT_WRITTEN:
        instead = Path(out or "").with_suffix(".csv")
        return [f"out must be a file of csv, jsonl or xlsx, got {out}. Hint: set out={instead}."]
    if chosen == "xlsx" and out is None:
        return ["out must be a file for format=xlsx, got null. Hint: set out=FILE.xlsx."]
    if named != chosen and (named != "csv" or chosen == "xlsx"):
        return [f"format must be that of out={out}, got {option}. Hint: set format=auto."]
    if chosen == "xlsx":
        return missing_package(
            "format=xlsx", "xlsxwriter", requirement="imagenet_ddp[excel]", instead="set out=FILE.csv format=csv"
        )
    return []


def csv_rows(stream: IO[str], delimiter: str, *, has_bom: bool) -> WriteRow:
    """Return a function that writes a row to a stream. has_bom: the stream is a file, and not a pipe to a program."""
    if has_bom:
        stream.write(BOM)
    return csv.writer(stream, delimiter=DELIMITERS[delimiter], lineterminator="\n").writerow


@contextmanager
def xlsx_rows(path: Path) -> Generator[WriteRow]:
    """Yield a function that writes a row of text and numbers to an Excel file, whose first row stays visible. Text is
    never taken for a formula or an address."""
    import xlsxwriter  # pyright: ignore[reportMissingTypeStubs]

    plain = {"strings_to_formulas": False, "strings_to_urls": False, "strings_to_numbers": False}
    with closing(xlsxwriter.Workbook(str(path), {"constant_memory": True, **plain})) as book:
        sheet: Any = book.add_worksheet()  # pyright: ignore[reportUnknownMemberType]
        sheet.freeze_panes(1, 0)
        number = 0

        def write(row: Sequence[Any]) -> None:
            nonlocal number
            cells = [each.encode(errors="backslashreplace").decode() if isinstance(each, str) else each for each in row]
            sheet.write_row(number, 0, cells)
            number += 1

        yield write
