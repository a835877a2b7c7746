"""The leaderboard: runs in order, with what differs between them; and the means of runs that differ in the seed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from imagenet_ddp.report.differences import Differences, canonical, printable, short_names, shown_option, value
from imagenet_ddp.report.runs import STATES, UNKNOWN, Run, number
from imagenet_ddp.report.search import in_order
from imagenet_ddp.report.table import Cell, Column, Table
from imagenet_ddp.system.text import count_noun, duration

# What sort= may be, and whether the best is the highest; None: no best, small ones first.
SORTS = {
    "top1": True, "top5": True, "loss": False, "images_per_s": True, "train_s": False, "epochs": True, "folder": None,
}  # fmt: skip
SUMMARY_COLUMNS = ("num_devices", "num_nodes", "global_batch_size", "precision", "num_parameters", "num_train_images",
                   "num_val_images", "data_wait_frac", "git_commit", "finished_at")  # fmt: skip


@dataclass(frozen=True)
class Leaderboard:
    runs: list[Run]  # in order
    table: Table
    seeds: Table | None


def leaderboard(runs: Sequence[Run], found: Differences, sort: str = "top1") -> Leaderboard:
    ordered = in_place(runs, sort)
    return Leaderboard(ordered, _table(ordered, found), _over_seeds(ordered, found))


def in_place(runs: Sequence[Run], sort: str) -> list[Run]:
    """sort: one of SORTS, or the key path of an option. Runs without the value come last; equal ones by folder."""
    runs = sorted(runs, key=lambda run: in_order(run.folder))
    if sort == "folder":
        return runs
    if sort in SORTS:
        sign = -1 if SORTS[sort] else 1
        figures = [getattr(run, {"top1": "best_top1"}.get(sort, sort)) for run in runs]
        keys = [(figure is None, sign * (figure or 0), "") for figure in figures]
    else:
        options = [value(run, sort) for run in runs]
        keys = [(number(option) is None, number(option) or 0, canonical(option)) for option in options]
    return [runs[place] for place in sorted(range(len(runs)), key=lambda place: keys[place])]


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.2f}"


def figure(value: float | None) -> str:
    """Four digits, or an integer."""
    if value is None:
        return "-"
    return f"{value:.0f}" if 1000 <= value < 1e7 else f"{value:.4g}"


def _table(runs: Sequence[Run], found: Differences) -> Table:
    columns = [Column("place", "#"), Column("run", "run", right=False), Column("best/val/top1", "top-1 %")]
    for place, key in enumerate(found.keys):
        known = [option for option in (value(run, key) for run in runs) if option is not UNKNOWN]
        is_number = all(number(option) is not None for option in known)
        drop = place + (2 if place < 3 else 30)
        columns.append(Column(key, printable(found.title(key)), drop, right=is_number))
    columns += [
        Column("state", "state", drop=10, right=False),
        Column("epochs", "epochs", drop=20),
        Column("best_epoch", "best in", drop=990),
        Column("val/top5", "top-5 %", drop=970),
        Column("val/loss", "val loss", drop=960),
        Column("images_per_s", "images/s", drop=950),
        Column("train_s", "time", drop=980),
        Column("max_epochs", "", shown=False),
        *(Column(name, "", shown=False) for name in SUMMARY_COLUMNS),
        Column("folder", "", shown=False),
        Column("problems", "", shown=False),
    ]
    rows = []
    for place, (run, name) in enumerate(zip(runs, short_names([run.folder for run in runs]), strict=True), 1):
        options = [(option, shown_option(option)) for option in (value(run, key) for key in found.keys)]
        asked = f"/{run.max_epochs}" if run.max_epochs is not None else ""
        extras = [run.summary.get(name) for name in SUMMARY_COLUMNS]
        extras[:2] = [run.num_devices, run.num_nodes]
        rows.append(
            [
                Cell(place, str(place)),
                Cell(name, name),
                Cell(run.best_top1, percent(run.best_top1)),
                *(Cell(number(option) if number(option) is not None else text, text) for option, text in options),
                Cell(run.state, run.state),
                Cell(run.epochs, f"{run.epochs}{asked}"),
                Cell(run.best_epoch, "-" if run.best_epoch is None else str(run.best_epoch)),
                Cell(run.top5, percent(run.top5)),
                Cell(run.loss, figure(run.loss)),
                Cell(run.images_per_s, figure(run.images_per_s)),
                Cell(run.train_s, "-" if run.train_s is None else duration(run.train_s)),
                Cell(run.max_epochs, ""),
                *(Cell(None if extra is None else printable(str(extra)), "") for extra in extras),
                Cell(printable(str(run.folder)), ""),
                Cell(printable("; ".join(run.problems)), ""),
            ]
        )
    return Table(columns, rows, _title(runs))


def _title(runs: Sequence[Run]) -> str:
    counts = {state: count for state in STATES if (count := sum(run.state == state for run in runs))}
    words = count_noun(len(runs), "run")
    if set(counts) == {"finished"}:
        return f"{words}, {'all ' if len(runs) > 1 else ''}finished"
    return f"{words}: " + ", ".join(f"{count} {state}" for state, count in counts.items())


def _over_seeds(runs: Sequence[Run], found: Differences) -> Table | None:
    """None unless finished runs with the same options differ in their seed."""
    if "seed" not in found.keys:
        return None
    keys = [key for key in found.keys if key != "seed"]
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        if run.state == "finished" and run.best_top1 is not None and run.options is not None:
            groups.setdefault(tuple(canonical(value(run, key)) for key in (*keys, *found.follow)), []).append(run)
    if not any(len({canonical(value(run, "seed")) for run in group}) > 1 for group in groups.values()):
        return None
    columns = [Column(key, printable(found.title(key)), drop=1 + place, right=False) for place, key in enumerate(keys)]
    columns += [Column("n", "runs"), Column("mean", "mean top-1 %"), Column("sd", "± sd"), Column("median", "median")]
    rows = []
    for group in groups.values():
        top1 = np.array([run.best_top1 for run in group], dtype=float)
        sd = float(top1.std(ddof=1)) if len(top1) > 1 else math.nan
        figures = [float(top1.mean()), None if math.isnan(sd) else sd, float(np.median(top1))]
        texts = [shown_option(value(group[0], key)) for key in keys]
        cells = [Cell(text, text) for text in texts] + [Cell(len(group), str(len(group)))]
        rows.append(cells + [Cell(one, percent(one)) for one in figures])
    rows.sort(key=lambda row: -row[-3].value)
    note = "Best val top-1 of finished runs; sd is the sample's standard deviation (n - 1)."
    return Table(columns, rows, "Over seeds", [note])
