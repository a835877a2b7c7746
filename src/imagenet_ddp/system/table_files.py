"""Write the tables that people read: CSV that spreadsheets open, and Excel files. Files that programs read
(metrics.csv) are written by files.csv_bytes."""

import csv
import io
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

from imagenet_ddp.mistakes import Fix, Mistake, meant, must_be, setting
from imagenet_ddp.system.packages import missing_package
from imagenet_ddp.system.text import as_in_tables, printable

# By the first bytes, spreadsheets recognise UTF-8; without them, they show Ã© for é.
BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t"}  # values of csv_delimiter
SUFFIXES = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".xlsx": "xlsx", ".html": "html"}
FILES_ONLY = ("xlsx", "html")  # formats that need a file of their own suffix
MOST_ROWS = 2**20 - 1  # of an Excel sheet, below its header

WriteRow = Callable[[Sequence[Any]], object]


# begins text that a spreadsheet takes for a formula, that readers of tables cut off (a blank), or that was quoted
_FORMULA = re.compile(r"'*[=+\-@\t\r ]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)


def as_text_cell(cell: Any) -> Any:
    """Return a cell that a spreadsheet takes for text: a name such as =HYPERLINK(...) gets an apostrophe in front, as
    one that begins with a blank. Numbers are not changed."""
    is_formula = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def of_text_cell(cell: str) -> str:
    """Return the text of which as_text_cell made the cell."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def table_bytes(head: Sequence[str], rows: Iterable[Sequence[Any]], delimiter: str = "comma") -> bytes:
    """Return the content of a CSV file for people. delimiter: one of DELIMITERS. Bytes in file names that are not valid
    text become backslash escapes, and None becomes an empty cell."""
    text = io.StringIO(newline="")
    text.write(BOM)
    csv.writer(text, delimiter=DELIMITERS[delimiter], lineterminator="\n").writerows(
        [head, *(map(as_text_cell, row) for row in rows)]
    )
    return text.getvalue().encode(errors="backslashreplace")


def csv_line(cells: Sequence[str]) -> str:
    """Return the row that table_bytes writes for these cells, each in quotes."""
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="").writerow(map(as_text_cell, cells))
    return text.getvalue()


def format_of(option: str, out: str | None) -> str:
    """Return csv, jsonl, xlsx or html. option: as typed, or auto for the format that the suffix of the file `out`
    names; of none, or .txt, csv."""
    return SUFFIXES.get(Path(out or "").suffix.lower(), "csv") if option == "auto" else option


def validate(option: str, out: str | None) -> list[Mistake]:
    """Return a mistake if the file `out` cannot be written in this format, or would have the suffix of another."""
    if out is not None and Path(out).is_dir():
        return []  # a mistake in any format
    suffix, chosen, keys = Path(out or "").suffix.lower(), format_of(option, out), ("out", "format")
    if suffix not in (*SUFFIXES, "", ".txt"):  # a file of any other suffix would not open as what it is named
        close = {".json": "jsonl", ".htm": "html", ".pdf": "html"}.get(suffix) if option == "auto" else chosen
        instead = Path(out or "").with_suffix(f".{close or chosen}")
        fix = Fix((f"out={instead}",), is_meant=close is not None)
        return [must_be("out", "a file of csv, jsonl, xlsx or html", str(out), fix)]
    if chosen in FILES_ONLY and out is None:
        return [Mistake(f"out must be a file for format={chosen}, got null", keys, (setting(f"out=FILE.{chosen}"),))]
    if SUFFIXES.get(suffix, chosen) != chosen:
        return [Mistake(f"format must be that of out={out}, got {option}", keys, (setting("format=auto"),))]
    if chosen in FILES_ONLY and suffix != f".{chosen}":
        fix = meant(f"out={Path(out or '').with_suffix(f'.{chosen}')}")
        return [Mistake(f"out must end in .{chosen} for format={chosen}, got {out}", keys, (fix,))]
    if chosen == "xlsx":
        instead = setting("out=FILE.csv", "format=csv")
        return missing_package("format=xlsx", "xlsxwriter", instead=instead)
    return []


def csv_rows(stream: IO[str], delimiter: str, *, has_bom: bool) -> WriteRow:
    """Return a function that writes a row to a stream. has_bom: the stream is a file, and not a pipe to a program."""
    if has_bom:
        stream.write(BOM)
    write_row, is_terminal = (
        csv.writer(stream, delimiter=DELIMITERS[delimiter], lineterminator="\n").writerow,
        stream.isatty(),
    )

    def write(row: Sequence[Any]) -> None:
        cells = map(as_text_cell, row)
        write_row([printable(cell) if is_terminal and isinstance(cell, str) else cell for cell in cells])

    return write


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
            cells = [as_in_tables(each) if isinstance(each, str) else each for each in row]
            sheet.write_row(number, 0, cells)
            number += 1

        yield write
