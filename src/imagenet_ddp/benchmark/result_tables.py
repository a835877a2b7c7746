"""Format benchmark.json for a terminal or for docs/performance.md, with one table per group of rows.

Does not import torch.
"""

import textwrap
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from imagenet_ddp.system.text import percent
from imagenet_ddp.system.text_table import Cell, Column, Table, as_markdown, as_text, text_cell

Content = Mapping[str, Any]  # the content of benchmark.json
WIDTH = 80


def tables(content: Content) -> list[Table]:
    """Return one table for each group of rows."""
    made = []
    for group, rows in groupby(content["rows"], key=lambda row: row["group"]):
        rows = list(rows)
        columns = [Column("", group, right=False), Column("", rows[0]["unit"])]
        more = {"all": "range"} if any(len(row["all"]) > 1 for row in rows) else {}
        more |= {key: key for key in ("ratio", "share", "MiB") if any(row.get(key) is not None for row in rows)}
        columns += [Column("", title) for title in more.values()]
        made.append(Table(columns, [_cells(row, more) for row in rows]))
    return made


def text(content: Content) -> str:
    """Return tables, notes and conclusion for a terminal, in lines of at most 80 columns."""
    lines = [line for table in tables(content) for line in [*as_text(table, WIDTH)[0], ""]]
    for line in [*content["notes"], "", content["conclusion"], ""]:
        lines += textwrap.wrap(line, WIDTH) or [""]
    return "\n".join(lines)


def markdown(content: Content) -> str:
    """Return tables, notes, machine, versions and command as Markdown for docs/performance.md."""
    machine, versions = content["machine"], content["versions"]
    parts = ["\n".join(as_markdown(table)) for table in tables(content)]
    if notes := [*content["notes"], content["conclusion"]]:
        parts.append("\n".join(f"- {note}" for note in notes))
    parts.append(
        f"Medians of {content['repeats']}; {machine['num_cores']} cores of {machine['cpu']}, "
        f"torch {versions['torch']}, lightning {versions['lightning']}, {content['finished_at'][:10]}: "
        f"`{content['command']}`"
    )
    return "\n\n".join(parts)


def _cells(row: Mapping[str, Any], more: Mapping[str, str]) -> list[Cell]:
    texts = {
        "all": f"{_number(min(row['all']))} to {_number(max(row['all']))}",
        "ratio": "" if row["ratio"] is None else f"{row['ratio']:.2f}",
        "share": percent(row["share"], 1) if row.get("share") is not None else "",
        "MiB": f"{row['MiB']:,.0f}" if row.get("MiB") is not None else "",
    }
    return [text_cell(row["title"]), Cell(None, _number(row["median"])), *(Cell(None, texts[key]) for key in more)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
