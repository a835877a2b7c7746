"""Render a table for a terminal, as Markdown and as CSV."""

from dataclasses import dataclass, field, replace
from typing import Any

from imagenet_ddp.system.table_files import table_bytes

MIN_TEXT_WIDTH = 22  # terminal columns; text is not shortened below this width


@dataclass(frozen=True)
class Column:
    key: str  # heading in the CSV
    title: str  # heading elsewhere
    drop: int = 0  # on a narrow terminal, the column with the highest number is left out first; 0: never
    right: bool = True  # align to the right
    shown: bool = True  # False: in the CSV only


@dataclass(frozen=True)
class Cell:
    value: Any  # unrounded; None: no value
    text: str


@dataclass(frozen=True)
class Table:
    columns: list[Column]
    rows: list[list[Cell]]
    title: str = ""
    notes: list[str] = field(default_factory=list[str])
    lead: str = ""  # a sentence before the rows

    def select(self, indices: list[int]) -> "Table":
        """Return the table with only these columns."""
        columns = [self.columns[index] for index in indices]
        return replace(self, columns=columns, rows=[[row[index] for index in indices] for row in self.rows])

    def shown(self) -> "Table":
        return self.select([index for index, column in enumerate(self.columns) if column.shown])


def text_cell(text: str) -> Cell:
    return Cell(text, text)


def as_text(table: Table, width: int) -> tuple[list[str], list[str]]:
    """Return (lines of at most `width` terminal columns, titles of the columns left out).

    Long text is shortened in the middle before a column is left out.
    """
    table, left_out = table.shown(), list[str]()
    while _total(_widths(table, shorten=True)) > width and any(column.drop for column in table.columns):
        last = max(range(len(table.columns)), key=lambda index: table.columns[index].drop)
        left_out.insert(0, table.columns[last].title)
        table = table.select([index for index in range(len(table.columns)) if index != last])
    widths, min_widths = _widths(table), _widths(table, shorten=True)
    while _total(widths) > width and widths != min_widths:
        widest = max(range(len(widths)), key=lambda index: widths[index] - min_widths[index])
        widths[widest] -= 1
    lines: list[str] = []
    for texts in [[column.title for column in table.columns], *([cell.text for cell in row] for row in table.rows)]:
        parts: list[str] = []
        for text, size, column in zip(texts, widths, table.columns, strict=True):
            text = shorten_middle(text, size)
            parts.append(text.rjust(size) if column.right else text.ljust(size))
        lines.append("  ".join(parts).rstrip())
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]], left_out


def as_markdown(table: Table) -> list[str]:
    table = table.shown()
    lines = [[escape_markdown(column.title) for column in table.columns]]
    lines.append(["---:" if column.right else "---" for column in table.columns])
    lines += [[escape_markdown(cell.text) for cell in row] for row in table.rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def as_csv(table: Table, delimiter: str = "comma") -> bytes:
    rows = [[cell.value for cell in row] for row in table.rows]
    return table_bytes([column.key for column in table.columns], rows, delimiter)


def escape_markdown(text: str) -> str:
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(char, entity)
    return "".join("\\" + char if char in "\\`*_[]|~#" else char for char in text)


def shorten_middle(text: str, width: int) -> str:
    """Shorten text to `width` characters. Keep the start and the end, because names of runs differ at either."""
    end = (width - 1) // 2
    return text if len(text) <= width else f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def _widths(table: Table, *, shorten: bool = False) -> list[int]:
    """Return the width of each column. shorten: return the minimum to which the column may be shortened."""
    widths: list[int] = []
    for index, column in enumerate(table.columns):
        width = max([len(column.title), *(len(row[index].text) for row in table.rows)])
        widths.append(min(width, MIN_TEXT_WIDTH) if shorten and not column.right else width)
    return widths


def _total(widths: list[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)
