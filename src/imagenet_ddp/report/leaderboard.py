"""Compare runs: collect them from folders, and make the leaderboard, a table with the options in which they differ, and
a figure of their curves. matplotlib is imported only to draw."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from imagenet_ddp.report.differences import (
    Differences,
    canonical,
    format_option,
    option,
    short_names,
)
from imagenet_ddp.report.run import (
    MARKER,
    RUN_FILES,
    STATES,
    UNKNOWN,
    NotARunError,
    Run,
    as_number,
    find_runs,
    natural_order,
    read_run,
)
from imagenet_ddp.runs import plots
from imagenet_ddp.runs.plots import column
from imagenet_ddp.system.text import count_noun, duration, percent, printable, shorten_list
from imagenet_ddp.system.text_table import Cell, Column, Table, as_markdown, escape_markdown, text_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Values of sort= that are not options -> (attribute of Run, whether the highest is best)
SORTS = {
    "top1": ("best_top1", True), "top5": ("top5", True), "loss": ("loss", False),
    "images_per_s": ("images_per_s", True), "train_s": ("train_s", False), "epochs": ("epochs", True),
}  # fmt: skip
MOST_OPTIONS = 6  # columns of options; further ones are in the CSV only
CSV_COLUMNS = ("global_batch_size", "precision", "num_parameters", "num_train_images", "num_val_images",
               "data_wait_frac", "git_commit", "finished_at")  # fmt: skip
GREY = "#C4C8CE"  # of curves for which the palette has no colour


class Collection(NamedTuple):
    runs: list[Run]  # without duplicates
    notes: list[str]
    mistakes: list[str]


def collect_runs(folders: Sequence[Path]) -> Collection:
    mistakes: list[str] = []
    runs: dict[Path, Run] = {}
    left_out: dict[Path, str] = {}
    for top in folders:
        found = find_runs(top)
        for folder in found:
            if folder not in runs and folder not in left_out:
                try:
                    runs[folder] = read_run(folder)
                except NotARunError as reason:
                    left_out[folder] = str(reason)
        if runs.keys().isdisjoint(found):
            mistakes.append(_no_run(top, found, left_out))
    reasons = [f"{printable(str(folder))} ({reason})" for folder, reason in left_out.items()]
    return Collection(list(runs.values()), [f"Left out: {shorten_list(reasons)}."] if reasons else [], mistakes)


def notes_on(runs: Sequence[Run], differences: Differences) -> list[str]:
    notes = ["top-5 and val loss belong to the best epoch. images/s is the median over the epochs after the first."]
    num_classes = {number for run in runs if isinstance(number := run.summary.get("num_classes"), int)}
    if few := sorted(number for number in num_classes if 0 < number < 5):
        notes.append(f"With fewer than 5 classes, top-5 is top-{' or top-'.join(map(str, few))}.")
    if derived := differences.derived:
        notes.append(f"Not shown, because data= or another choice determines them: {shorten_list(derived)}.")
    for name, versions in sorted(_versions(runs).items()):
        if len(versions) > 1:
            notes.append(f"The runs were made with different versions of {name}: {shorten_list(sorted(versions))}.")
    names = short_names([run.folder for run in runs]) if runs else []
    partial = [f"{name} ({'; '.join(run.problems)})" for name, run in zip(names, runs, strict=True) if run.problems]
    if partial:
        notes.append(f"Incomplete: {shorten_list(partial)}.")
    return [printable(note) for note in notes]


def _versions(runs: Sequence[Run]) -> dict[str, set[str]]:
    """Return package -> the versions of the runs. Python and the commit of this project are included."""
    versions: dict[str, set[str]] = {}
    for run in runs:
        packages = run.summary.get("versions")
        pairs: dict[Any, Any] = dict(packages) if isinstance(packages, dict) else {}
        if commit := run.summary.get("git_commit"):
            pairs["the code (git commit)"] = str(commit)[:12]
        for name, version in pairs.items():
            versions.setdefault(str(name), set()).add(str(version))
    return versions


def _no_run(top: Path, found: Sequence[Path], left_out: dict[Path, str]) -> str:
    reasons = [f"{printable(str(folder))}: {left_out[folder]}" for folder in found if folder in left_out]
    return (
        f"{printable(str(top))} must be or contain a run folder, but no folder in it has any of the files "
        f"{', '.join(sorted(RUN_FILES))} of a training run{f' ({shorten_list(reasons)})' if reasons else ''}. "
        "Hint: pass runs/<name>/<time>, or a folder above it."
    )


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


def draw_curves(runs: Sequence[Run], labels: Sequence[str], title: str) -> "Figure":
    """Draw validation top-1 and training loss. runs: best first; those for which the palette has no colour are grey.
    labels: one per run, for the legend."""
    colored = plots.PALETTE[: len(runs)]
    subtitle = "Best first" if len(runs) > 1 else ""
    figure = plots.new_figure(11, 5.4 + 0.2 * len(colored), title, subtitle)
    panels = {"val/top1": "Validation top-1", "train/loss": "Training loss"}
    for axes, (name, heading) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        lines = [column(run.metrics, name) for run in runs]
        for number, (epochs, values) in reversed(list(enumerate(lines))):  # the best run is drawn last, on top
            color = colored[number] if number < len(colored) else GREY
            axes.plot(epochs, values, color=color, marker="o", markersize=3, label=_entry(runs[number], labels[number]))
        plots.style_axes(axes, heading, [values for _, values in lines], percent=name == "val/top1")
    handles = figure.axes[0].get_lines()[::-1][: len(colored)]
    legend = figure.legend(handles=handles, loc="outside lower left", frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def _entry(run: Run, label: str) -> str:
    top1 = "no top-1" if run.best_top1 is None else percent(run.best_top1)
    state = f"  ({run.state})" if run.state != "finished" else ""
    return f"{top1}  {label}{state}"


def markdown_document(title: str, table: Table, picture: str) -> str:
    """Return the text of report.md. picture: file name of the figure with the curves."""
    lines = [f"<!-- {MARKER} -->", f"# {escape_markdown(title)}", ""]
    lines += [f"## {escape_markdown(table.title)}", "", *as_markdown(table), ""]
    for note in table.notes:
        lines += [escape_markdown(note), ""]
    return "\n".join([*lines, f"![Validation top-1 and training loss over the epochs]({picture})", ""])
