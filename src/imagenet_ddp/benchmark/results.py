"""Write benchmark.json, and show it as tables."""

import os
import statistics
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from imagenet_ddp.runs import result_files
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.cpu_cores import cpu_model, num_cores
from imagenet_ddp.system.text_table import Cell, Column, Table, as_text, text_cell

WIDTH = 80


@dataclass
class Results:
    """The results of one mode. rows: the rows of the tables, each made by row(). figures: all other
    measurements."""

    ratios: dict[str, float | None]
    rows: list[dict[str, Any]]
    conclusion: str
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def row(
    group: str, title: str, unit: str, values: Sequence[float], ratio: float | None = None, **more: Any
) -> dict[str, Any]:
    """Return one row of a table. group: the table's title. values: one per repeat. ratio: relative to the first row of
    the table."""
    rounded = [round(value, 4) for value in values]
    over = None if ratio is None else round(ratio, 3)
    figures = {"median": statistics.median(rounded), "all": rounded, "ratio": over}
    return {"group": group, "title": title, "unit": unit, **figures, **more}


def ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of value / other over the repeats."""
    return statistics.median(value / other for value, other in zip(values, others, strict=True))


def finish(folder: Path, mode: str, repeats: int, command: str, results: Results) -> None:
    """Write benchmark.json, and print the tables."""
    machine = {"cpu": cpu_model(), "num_cores": num_cores(), "system": sys.platform, "load": os.getloadavg()[0]}
    content = {"mode": mode, **vars(results), **results.figures, "repeats": repeats, "machine": machine}
    content |= result_files.provenance(command)
    del content["figures"]
    result_files.write_json(folder / "benchmark.json", content)
    print_message(text(content), sys.stdout)
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    print_message(f"Written to {folder}: {', '.join(names)}", sys.stdout)


def text(content: Mapping[str, Any]) -> str:
    """Return tables, notes and conclusion for a terminal, in lines of at most 80 columns."""
    lines = [line for table in tables(content) for line in [*as_text(table, WIDTH)[0], ""]]
    for note in content["notes"]:
        lines += textwrap.wrap(f"- {note}", WIDTH, subsequent_indent="  ")
    return "\n".join([*lines, *[""] * bool(content["notes"]), *textwrap.wrap(content["conclusion"], WIDTH), ""])


def tables(content: Mapping[str, Any]) -> list[Table]:
    made = []
    for group, rows in groupby(content["rows"], key=lambda row: row["group"]):
        rows = list(rows)
        columns = [Column("", group, right=False), Column("", rows[0]["unit"])]
        more = {"all": "range"} if any(len(row["all"]) > 1 for row in rows) else {}
        more |= {key: key for key in ("ratio", "MiB") if any(row.get(key) is not None for row in rows)}
        columns += [Column("", title) for title in more.values()]
        made.append(Table(columns, [_cells(row, more) for row in rows]))
    return made


def _cells(row: Mapping[str, Any], more: Mapping[str, str]) -> list[Cell]:
    texts = {
        "all": f"{_number(min(row['all']))} to {_number(max(row['all']))}",
        "ratio": "" if row["ratio"] is None else f"{row['ratio']:.2f}",
        "MiB": f"{row['MiB']:,.0f}" if row.get("MiB") is not None else "",
    }
    return [text_cell(row["title"]), Cell(None, _number(row["median"])), *(Cell(None, texts[key]) for key in more)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")
