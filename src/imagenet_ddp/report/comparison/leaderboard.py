"""Make the leaderboard, a table of runs with the options in which they differ."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from imagenet_ddp.report.comparison.differences import (
    Differences,
    canonical,
    format_option,
    option,
    printable,
    short_names,
)  # fmt: skip
from imagenet_ddp.report.run import STATES, UNKNOWN, Run, as_number, natural_order
from imagenet_ddp.system.text import count_noun, duration
from imagenet_ddp.system.text_table import Cell, Column, Table, text_cell

# Values of sort= that are not options -> (attribute of Run, whether the highest is best)
SORTS = {
    "top1": ("best_top1", True), "top5": ("top5", True), "loss": ("loss", False),
    "images_per_s": ("images_per_s", True), "train_s": ("train_s", False), "epochs": ("epochs", True),
}  # fmt: skip
MOST_OPTIONS = 6  # columns of options; further ones are in the CSV only
MOST_EQUAL = 0.75  # an option with the same value in a larger share of the runs comes after the others
CSV_COLUMNS = ("global_batch_size", "precision", "num_parameters", "num_train_images", "num_val_images",
               "data_wait_frac", "git_commit", "finished_at")  # fmt: skip


def sort_runs(runs: Sequence[Run], key: str) -> list[Run]:
    """Sort runs by a key of SORTS, by "folder", or by the key path of an option. Runs without a value come last; ties
    are sorted by folder."""

    def order(run: Run) -> tuple[bool, float, str]:
        if key in SORTS:
            attribute, highest_first = SORTS[key]
            value, text = getattr(run, attribute), ""
        else:
            value, text, highest_first = as_number(option(run, key)), canonical(option(run, key)), False
        return value is None, (-1 if highest_first else 1) * (value or 0), text

    runs = sorted(runs, key=lambda run: natural_order(run.folder))
    return runs if key == "folder" else sorted(runs, key=order)


def leaderboard(runs: Sequence[Run], differences: Differences) -> Table:
    """Return the table of runs. runs: the runs in the order of the rows."""

    def is_rare(key: str) -> bool:
        return max(Counter(canonical(option(run, key)) for run in runs).values()) > MOST_EQUAL * len(runs)

    differences = replace(differences, keys=sorted(differences.keys, key=is_rare))
    options = []
    for index, key in enumerate(differences.keys):
        values = [option(run, key) for run in runs]
        is_number = all(value is UNKNOWN or as_number(value) is not None for value in values)
        drop = index + (2 if index < 3 else 30)
        title = printable(differences.title(key))
        options.append(Column(key, title, drop, right=is_number, shown=index < MOST_OPTIONS))
    columns = [
        Column("place", "#"), Column("run", "run", right=False), Column("best/val/top1", "top-1 %"),
        *options,
        Column("state", "state", drop=10, right=False), Column("epochs", "epochs", drop=20),
        Column("best_epoch", "best epoch", drop=990), Column("val/top5", "top-5 %", drop=970),
        Column("val/loss", "val loss", drop=960), Column("images_per_s", "images/s", drop=950),
        Column("train_s", "time", drop=980),
        *(Column(key, "", shown=False)
          for key in ("max_epochs", "num_devices", "num_nodes", *CSV_COLUMNS, "folder", "problems")),
    ]  # fmt: skip
    names = short_names([run.folder for run in runs])
    rows = [
        [Cell(place, str(place)), text_cell(name), *_cells(run, differences)]
        for place, (run, name) in enumerate(zip(runs, names, strict=True), 1)
    ]
    further = [column.title for column in options if not column.shown]
    notes = [f"Further options that differ are in report.csv: {', '.join(further)}."] if further else []
    return Table(columns, rows, _title(runs), notes)


def _cells(run: Run, differences: Differences) -> list[Cell]:
    values = [option(run, key) for key in differences.keys]
    limit = f"/{run.max_epochs}" if run.max_epochs is not None else ""
    extras = [run.summary.get(key) for key in CSV_COLUMNS]
    csv_only = [run.max_epochs, run.num_devices, run.num_nodes, *extras, run.folder, "; ".join(run.problems)]
    return [
        percent_cell(run.best_top1),
        *(Cell(format_option(value) if as_number(value) is None else value, format_option(value)) for value in values),
        text_cell(run.state),
        Cell(run.epochs, f"{run.epochs}{limit}"),
        Cell(run.best_epoch, "-" if run.best_epoch is None else str(run.best_epoch)),
        percent_cell(run.top5),
        number_cell(run.loss),
        number_cell(run.images_per_s),
        Cell(run.train_s, "-" if run.train_s is None else duration(run.train_s)),
        *(Cell(None if value is None else printable(str(value)), "") for value in csv_only),
    ]


def percent_cell(fraction: float | None) -> Cell:
    """Format a fraction in percent, without the percent sign, which is in the title of the column."""
    return Cell(fraction, "-" if fraction is None else f"{100 * fraction:.2f}")


def number_cell(value: float | None) -> Cell:
    """Format a number with four significant digits, or without decimals from 1,000 to 10 million."""
    if value is None:
        return Cell(None, "-")
    return Cell(value, f"{value:.0f}" if 1000 <= value < 1e7 else f"{value:.4g}")


def _title(runs: Sequence[Run]) -> str:
    counts = {state: count for state in STATES if (count := sum(run.state == state for run in runs))}
    if set(counts) == {"finished"}:
        return f"{count_noun(len(runs), 'run')}, {'all ' if len(runs) > 1 else ''}finished"
    return f"{count_noun(len(runs), 'run')}: " + ", ".join(f"{count} {state}" for state, count in counts.items())
