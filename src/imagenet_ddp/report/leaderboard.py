"""Compare runs: make the leaderboard, a table with the options in which they differ, and a figure of their curves.
matplotlib is imported only to draw."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from imagenet_ddp.report.differences import Differences, format_option, labels, option, short_names
from imagenet_ddp.report.run import MARKER, STATES, Run, as_number
from imagenet_ddp.runs import plots
from imagenet_ddp.runs.plots import column
from imagenet_ddp.system.text import count_noun, duration, percent, printable, shorten_list
from imagenet_ddp.system.text_table import Cell, Column, Table, as_markdown, escape_markdown, text_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_OPTIONS = 6  # columns of options; further ones are in the CSV only
CSV_COLUMNS = ("num_devices", "num_nodes", "global_batch_size", "precision", "num_parameters", "num_train_images",
               "num_val_images", "data_wait_frac", "git_commit", "finished_at")  # fmt: skip
GREY = "#C4C8CE"  # of curves for which the palette has no colour


def sort_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with the best top-1 first. Runs without validation come last; ties keep their order."""
    return sorted(runs, key=lambda run: -1 if run.best_top1 is None else run.best_top1, reverse=True)


def leaderboard(runs: Sequence[Run], differences: Differences) -> Table:
    """Return the table of runs. runs: the runs in the order of the rows."""
    options = []
    for index, key in enumerate(differences.keys):
        is_number = all(as_number(option(run, key)) is not None for run in runs)
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
        *(Column(key, "", shown=False) for key in ("max_epochs", *CSV_COLUMNS, "folder")),
    ]  # fmt: skip
    names = short_names([run.folder for run in runs])
    rows = [
        [Cell(place, str(place)), text_cell(name), *_cells(run, differences)]
        for place, (run, name) in enumerate(zip(runs, names, strict=True), 1)
    ]
    counts = [f"{count} {state}" for state in STATES if (count := sum(run.state == state for run in runs))]
    notes = ["top-5 and val loss belong to the best epoch. images/s is the median over the epochs after the first."]
    if further := [column.title for column in options if not column.shown]:
        notes.append(f"Further options that differ are in report.csv: {', '.join(further)}.")
    if differences.derived:
        derived = printable(shorten_list(differences.derived))
        notes.append(f"Not shown, because data= or another choice determines them: {derived}.")
    return Table(columns, rows, f"{count_noun(len(runs), 'run')}: {', '.join(counts)}", notes)


def _cells(run: Run, differences: Differences) -> list[Cell]:
    values = [option(run, key) for key in differences.keys]
    limit = "" if run.max_epochs is None else f"/{run.max_epochs}"
    csv_only = [run.max_epochs, *(run.summary.get(key) for key in CSV_COLUMNS), run.folder]
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


def draw_curves(runs: Sequence[Run], differences: Differences, title: str) -> "Figure":
    """Draw validation top-1 and training loss. runs: best first; those for which the palette has no colour are grey."""
    colored = plots.PALETTE[: len(runs)]
    figure = plots.new_figure(11, 5.4 + 0.2 * len(colored), title, "Best first" if len(runs) > 1 else "")
    panels = {"val/top1": "Validation top-1", "train/loss": "Training loss"}
    for axes, (name, heading) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        lines = [column(run.metrics, name) for run in runs]
        for number, (epochs, values) in reversed(list(enumerate(lines))):  # the best run is drawn last, on top
            color = colored[number] if number < len(colored) else GREY
            axes.plot(epochs, values, color=color, marker="o", markersize=3)
        plots.style_axes(axes, heading, [values for _, values in lines], percent=name == "val/top1")
    entries = [
        f"{'no top-1' if run.best_top1 is None else percent(run.best_top1)}  {label}  ({run.state})"
        for run, label in zip(runs, labels(runs, differences), strict=True)
    ]
    handles = figure.axes[0].get_lines()[::-1][: len(colored)]
    legend = figure.legend(handles, entries[: len(colored)], loc="outside lower left", frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def markdown_document(title: str, table: Table, picture: str) -> str:
    """Return the text of report.md. picture: file name of the figure with the curves."""
    lines = [f"<!-- {MARKER} -->", f"# {escape_markdown(title)}", ""]
    lines += [f"## {escape_markdown(table.title)}", "", *as_markdown(table), ""]
    for note in table.notes:
        lines += [escape_markdown(note), ""]
    return "\n".join([*lines, f"![Validation top-1 and training loss over the epochs]({picture})", ""])
