"""A table, and how it is written: for a terminal, as Markdown, as CSV."""

import csv
import io
import unicodedata
from dataclasses import dataclass, field, replace
from typing import Any

LEAST_TEXT = 22  # columns of the screen: a name is shortened no further


@dataclass(frozen=True)
class Column:
    key: str  # in the CSV
    title: str  # for people
    drop: int = 0  # on a narrow screen the highest goes first; 0 stays
    right: bool = True
    shown: bool = True  # False: in the CSV alone


@dataclass(frozen=True)
class Cell:
    value: Any  # unrounded; None where there is none
    text: str


@dataclass(frozen=True)
class Table:
    columns: list[Column]
    rows: list[list[Cell]]
    title: str = ""
    notes: list[str] = field(default_factory=list)

    def for_people(self) -> "Table":
        return self._only([number for number, column in enumerate(self.columns) if column.shown])

    def without(self, place: int) -> "Table":
        return self._only([number for number in range(len(self.columns)) if number != place])

    def _only(self, places: list[int]) -> "Table":
        columns = [self.columns[place] for place in places]
        return replace(self, columns=columns, rows=[[row[place] for place in places] for row in self.rows])


def as_text(table: Table, width: int) -> tuple[list[str], list[str]]:
    """(lines of at most `width` columns of the screen, titles of the columns that were left out for it). Long names
    are shortened first, in their middle."""
    table, left_out = table.for_people(), []
    while _total(_least(table)) > width and any(column.drop for column in table.columns):
        place = max(range(len(table.columns)), key=lambda n: table.columns[n].drop)
        left_out.append(table.columns[place].title)
        table = table.without(place)
    widths, least = _widths(table), _least(table)
    while _total(widths) > width and widths != least:
        place = max(range(len(widths)), key=lambda n: widths[n] - least[n])
        widths[place] -= 1
    head = [column.title for column in table.columns]
    lines = []
    for texts in [head, *([cell.text for cell in row] for row in table.rows)]:
        parts = []
        for text, size, column in zip(texts, widths, table.columns, strict=True):
            text = shortened(text, size)
            room = " " * (size - screen_width(text))
            parts.append(room + text if column.right else text + room)
        lines.append("  ".join(parts).rstrip())
    return [lines[0], "-" * max(map(screen_width, lines)), *lines[1:]], left_out[::-1]


def as_markdown(table: Table) -> list[str]:
    table = table.for_people()
    lines = [[markdown(column.title) for column in table.columns]]
    lines.append(["---:" if column.right else "---" for column in table.columns])
    lines += [[markdown(cell.text) for cell in row] for row in table.rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def as_csv(table: Table) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([column.key for column in table.columns])
    writer.writerows([["" if cell.value is None else cell.value for cell in row] for row in table.rows])
    return stream.getvalue()


def markdown(text: str) -> str:
    """As it reads, whatever signs it holds."""
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(sign, entity)
    return "".join("\\" + sign if sign in "\\`*_[]|~#" else sign for sign in text)


def screen_width(text: str) -> int:
    """Chinese, Japanese and Korean signs take two columns, combining ones none."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def shortened(text: str, width: int) -> str:
    """The begin and the end: names of runs differ in either."""
    if screen_width(text) <= width:
        return text
    begin, end = text, text[len(text) // 2 :]
    while screen_width(end) > (width - 1) // 2:
        end = end[1:]
    while screen_width(begin) + screen_width(end) + 1 > width:
        begin = begin[:-1]
    return f"{begin}…{end}"


def cut(text: str, width: int) -> str:
    """The begin alone."""
    while screen_width(text) > width:
        text = text.removesuffix("…")[:-1] + "…"
    return text


def _widths(table: Table) -> list[int]:
    return [
        max([screen_width(column.title), *(screen_width(row[n].text) for row in table.rows)])
        for n, column in enumerate(table.columns)
    ]


def _least(table: Table) -> list[int]:
    sizes = zip(_widths(table), table.columns, strict=True)
    return [size if column.right else min(size, LEAST_TEXT) for size, column in sizes]


def _total(widths: list[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)
