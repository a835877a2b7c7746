"""The report as one HTML file that needs no other: styles, pictures and a few lines of script are inside."""

import base64
import html
from collections.abc import Sequence

from imagenet_ddp.report.table import Cell, Column, Table

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #5f6368; --line: #e0e3e8; --paper: #fff; --stripe: #f6f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaed; --soft: #9aa0a6; --line: #3c4043; --paper: #17181a; --stripe: #202124; }
}
body { margin: 2rem auto; max-width: 80rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif;
       color: var(--ink); background: var(--paper); }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { color: var(--soft); margin: .25rem 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
th button { all: unset; cursor: pointer; font-weight: 600; } th button:focus-visible { outline: 2px solid; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.right { text-align: right; } tbody tr:nth-child(even) { background: var(--stripe); }
img { max-width: 100%; height: auto; border-radius: 6px; background: #fff; margin-top: 1rem; }
"""
# A click on a header sorts by it, a second one the other way; cells without a value stay at the end.
_SCRIPT = """
document.querySelectorAll("th button").forEach(button => button.addEventListener("click", () => {
  const head = button.parentElement, body = head.closest("table").tBodies[0], place = head.cellIndex;
  const sign = head.ariaSort === "ascending" ? -1 : 1;
  head.parentElement.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  const value = row => row.cells[place].dataset.value, number = text => text.trim() === "" ? NaN : Number(text);
  const order = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const x = number(a), y = number(b);
    return sign * (isNaN(x) || isNaN(y) ? a.localeCompare(b, undefined, {numeric: true}) : x - y);
  };
  [...body.rows].sort((a, b) => order(value(a), value(b))).forEach(row => body.append(row));
}));
"""


def page(title: str, tables: Sequence[Table], pictures: Sequence[tuple[str, bytes]], marker: str) -> str:
    """pictures: (what it shows, PNG). marker: by which the file is known as ours."""
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="{html.escape(marker)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
    ]
    for table in tables:
        parts += [f"<h2>{html.escape(table.title)}</h2>", _table(table.for_people())]
        parts += [f"<p>{html.escape(note)}</p>" for note in table.notes]
    for words, picture in pictures:
        data = base64.b64encode(picture).decode()
        parts.append(f'<img src="data:image/png;base64,{data}" alt="{html.escape(words)}">')
    parts.append(f"<script>{_SCRIPT}</script></body></html>")
    return "\n".join(parts) + "\n"


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_side(column)}><button type="button">{html.escape(column.title)}</button></th>'
        for column in table.columns
    )
    rows = [
        "<tr>" + "".join(_cell(cell, column) for cell, column in zip(row, table.columns, strict=True)) + "</tr>"
        for row in table.rows
    ]
    body = "\n".join(rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _cell(cell: Cell, column: Column) -> str:
    value = "" if cell.value is None else str(cell.value)
    return f'<td{_side(column)} data-value="{html.escape(value)}">{html.escape(cell.text)}</td>'


def _side(column: Column) -> str:
    return ' class="right"' if column.right else ""
