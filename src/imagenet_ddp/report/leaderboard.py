"""Make the tables of a comparison: of runs, with the options in which they differ, and of their scores over the
seeds."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from imagenet_ddp.config.figures import FIGURES, Figure, figure_of
from imagenet_ddp.report.compared_runs import ComparedRuns, set_name
from imagenet_ddp.report.differing_options import DRAWS, canonical, format_option, option
from imagenet_ddp.report.over_seeds import OverSeeds, over_seeds
from imagenet_ddp.report.run_folders import MARKER, STATES, Run
from imagenet_ddp.system.text import count_noun, duration, printable, shorten_list
from imagenet_ddp.system.text_table import Cell, Column, Table, as_markdown, escape_markdown, text_cell

MOST_OPTIONS = 6  # columns of options; further ones are in the CSV only
CSV_COLUMNS = ("num_devices", "num_nodes", "global_batch_size", "precision", "num_parameters", "num_train_images",
               "num_val_images", "data_wait_frac", "git_commit", "finished_at")  # fmt: skip
OVER_SEEDS = ("num_seeds", "mean_over_seeds", "std_over_seeds")  # in the CSV only, for each run of a group


def leaderboard(compared: ComparedRuns) -> Table:
    """Return the table of runs. The numbering restarts with each set of validation images."""
    runs, differences, sets, scores = compared.runs, compared.differences, compared.set_of, compared.scores
    options = []
    for index, key in enumerate(differences.keys):
        drop = index + (2 if index < 3 else 30)
        is_number = all(_is_number(option(run, key)) for run in runs)
        title = printable(differences.title(key))
        options.append(Column(key, title, drop, right=is_number, shown=index < MOST_OPTIONS))
    keeps_state = len({run.state for run in runs}) > 1
    further = _further(compared)
    columns = [
        Column("place", "#"), Column("run", "run", right=False),
        *_score_columns(scores),
        Column("val_images", "on", right=False, shown=compared.several_sets),
        *options,
        Column("state", "state", drop=1 if keeps_state else 10, right=False), Column("epochs", "epochs", drop=20),
        Column("best_epoch", "best epoch", drop=990),
        *(Column(f"val/{each.name}", f"{each.title} %" if each.is_share else f"val {each.title}", drop=970 - 10 * index)
          for index, each in enumerate(further)),
        Column("images_per_s", "images/s", drop=850),
        Column("train_s", "time", drop=980),
        *(Column(key, "", shown=False) for key in ("max_epochs", *_csv_only(compared), *OVER_SEEDS, "folder")),
    ]  # fmt: skip
    names = compared.names()
    groups = {run.folder: group for group in over_seeds(compared) for run in group.runs}
    rows = [
        [Cell(place, str(place)), text_cell(name), *_cells(run, number, compared, further, groups.get(run.folder))]
        for place, run, name, number in zip(_places(sets), runs, names, sets, strict=True)
    ]
    counts = [f"{count} {state}" for state in STATES if (count := sum(run.state == state for run in runs))]
    titles = [each.title if each.is_share else f"val {each.title}" for each in further]
    notes = ["images/s is the median over the epochs after the first."]
    if titles:
        named = " and ".join(filter(None, [", ".join(titles[:-1]), titles[-1]]))
        notes[0] = f"{named} {'belong' if titles[1:] else 'belongs'} to the best epoch. {notes[0]}"
    if len(scores) > 1:
        notes.append(f"The runs have different scores: {', '.join(each.title for each in scores)}.")
    if hidden := [column.title for column in options if not column.shown]:
        notes.append(f"Further options that differ are in report.csv: {', '.join(hidden)}.")
    strange = [(run.problems, name) for run, name in zip(runs, names, strict=True) if run.problems]
    if texts := [f"{name} ({shorten_list(problems, 2)})" for problems, name in strange]:
        notes.append(f"Left out, because it is not what a run writes: {printable(shorten_list(texts))}.")
    if differences.derived:
        derived = printable(shorten_list(differences.derived))
        notes.append(f"Not shown, because data= or another choice determines them: {derived}.")
    title = f"{count_noun(len(runs), 'run')}: {', '.join(counts)}"
    return Table(columns, rows, title, notes, compared.say_sets())


def seeds_table(compared: ComparedRuns) -> Table | None:
    """Return the table of the groups, with the options that tell them apart, and how far each is from the first of its
    set and score; None if there are none. The numbering restarts with each set of validation images."""
    if not (groups := over_seeds(compared)):
        return None
    differences, firsts = compared.differences, [group.runs[0] for group in groups]
    keys = [
        key for key in differences.keys if key not in DRAWS and len({canonical(option(run, key)) for run in firsts}) > 1
    ]
    scores = [each for each in compared.scores if each in {group.score for group in groups}]
    best_of = {(group.set_number, group.score): group for group in reversed(groups)}
    behind = [group.differences(best_of[group.set_number, group.score]) for group in groups]
    behind = [each if any(each) and len(each) > 1 else [] for each in behind]
    drawn = [word for key, word in zip(DRAWS, ("seeds", "folds"), strict=True) if key in differences.keys]
    columns = [
        Column("place", "#"),
        Column("options", "options", right=False, shown=bool(keys)),
        *_score_columns(scores),
        Column("to_first", "to the first", shown=any(behind)),
        Column("val_images", "on", right=False, shown=compared.several_sets),
        Column("num_seeds", drawn[0] if len(drawn) == 1 else "runs"),
    ]
    rows = list[list[Cell]]()
    for place, group, lag in zip(_places([group.set_number for group in groups]), groups, behind, strict=True):
        rows.append([
            Cell(place, str(place)),
            text_cell(differences.describe(group.runs[0], keys)),
            *(_spread(each, [*group.bests.values()] if each == group.score else []) for each in scores),
            _spread(group.score, lag, is_signed=True),
            text_cell(set_name(group.set_number)),
            Cell(len(group.bests), str(len(group.bests))),
        ])  # fmt: skip
    over = " and ".join(drawn)
    notes = [f"± is the sample standard deviation over the {over} of finished runs that differ in nothing else."]
    if any(behind):
        notes.append(f"To the first: the mean of the differences to the first setting, each with the same {over}.")
    return Table(columns, rows, f"Over {over}", notes)


def _spread(figure: Figure, values: Sequence[float], *, is_signed: bool = False) -> Cell:
    """Return mean ± standard deviation. is_signed: with the sign of the mean, also of a positive one."""
    if not values:
        return number_cell(None)
    mean = fmean(values)
    plus = "+" if is_signed and mean > 0 else ""
    return Cell(mean, plus + " ± ".join(figure_cell(figure, value).text for value in (mean, stdev(values))))


def _further(compared: ComparedRuns) -> list[Figure]:
    """Return the figures of the best epochs besides the scores: fractions first, and those of the tasks before
    others."""
    found = {name for run in compared.runs for name in run.at_best} - {each.name for each in compared.scores}
    known = [figure for name, figure in FIGURES.items() if name in found]
    others = [figure_of(name) for name in sorted(found - FIGURES.keys())]
    return sorted([*known, *others], key=lambda figure: not figure.is_share)


def _csv_only(compared: ComparedRuns) -> list[str]:
    return [key for key in CSV_COLUMNS if key not in compared.differences.keys]


def _cells(
    run: Run, set_number: int, compared: ComparedRuns, further: Sequence[Figure], group: OverSeeds | None
) -> list[Cell]:
    values = [option(run, key) for key in compared.differences.keys]
    limit = "" if run.max_epochs is None else f"/{run.max_epochs}"
    seeds = (len(group.bests), group.mean, group.std) if group else (None,) * len(OVER_SEEDS)
    csv_only = [run.max_epochs, *(run.summary.get(key) for key in _csv_only(compared)), *seeds, run.folder]
    return [
        *(figure_cell(each, run.best if each == run.score else None) for each in compared.scores),
        text_cell(set_name(set_number)),
        *(Cell(value if _is_number(value) else format_option(value), format_option(value)) for value in values),
        text_cell(run.state),
        Cell(run.epochs, f"{run.epochs}{limit}"),
        Cell(run.best_epoch, "-" if run.best_epoch is None else str(run.best_epoch)),
        *(figure_cell(each, run.at_best.get(each.name)) for each in further),
        number_cell(run.images_per_s),
        Cell(run.train_s, "-" if run.train_s is None else duration(run.train_s)),
        *(Cell(None if value is None else printable(str(value)), "") for value in csv_only),
    ]


def _places(sets: Sequence[int]) -> list[int]:
    """Return the place of each row, counted from 1 within its set of validation images."""
    return [sets[: number + 1].count(of_row) for number, of_row in enumerate(sets)]


def _score_columns(scores: Sequence[Figure]) -> list[Column]:
    return [Column(f"best/val/{each.name}", f"{each.title} %" if each.is_share else each.title) for each in scores]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def figure_cell(figure: Figure, value: float | None) -> Cell:
    """Format a fraction in percent, without the percent sign, which is in the title of the column."""
    if not figure.is_share:
        return number_cell(value)
    return Cell(value, "-" if value is None else f"{100 * value:.2f}")


def number_cell(value: float | None) -> Cell:
    """Format a number with four significant digits, or without decimals from 1,000 to 10 million."""
    if value is None:
        return Cell(None, "-")
    return Cell(value, f"{value:.0f}" if 1000 <= value < 1e7 else f"{value:.4g}")


def markdown_document(title: str, tables: Sequence[Table], picture: str) -> str:
    """Return the text of report.md. picture: file name of the figure with the curves."""
    lines = [f"<!-- {MARKER} -->", f"# {escape_markdown(title)}", ""]
    for table in tables:
        lead = [escape_markdown(table.lead), ""] if table.lead else []
        notes = [line for note in table.notes for line in (escape_markdown(note), "")]
        lines += [f"## {escape_markdown(table.title)}", "", *lead, *as_markdown(table), "", *notes]
    return "\n".join([*lines, f"![Validation score and training loss over the epochs]({picture})", ""])
