"""Compare runs: find the options in which they differ, and make the leaderboard with these options and a figure of the
curves. matplotlib is imported only to draw."""

import json
import os
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from imagenet_ddp.cli.known_terms import removed
from imagenet_ddp.config.figures import FIGURES, Figure, figure_of
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.config.validators import shown
from imagenet_ddp.mistakes import key_of
from imagenet_ddp.report.run_folders import MARKER, STATES, Run
from imagenet_ddp.runs import plots
from imagenet_ddp.system.text import count_noun, duration, printable, shorten_list
from imagenet_ddp.system.text_table import Cell, Column, Table, as_markdown, escape_markdown, shorten_middle, text_cell

if TYPE_CHECKING:
    from matplotlib import figure as diagrams

# ---- the options in which runs differ -------------------------------------------------------------------------------

# Keys that only describe how a run was started, such as its rendezvous and what it resumed, or how it is logged.
NOT_OPTIONS = {"resume", "allow_targets", "sweep.job", "sweep.resume", "cluster.requeue"} | {
    f"cluster.{key}" for key in ("name", "address", "job_id", "node_rank", "rank", "local_rank", "world_size")
}
NOT_OPTIONS_BELOW = ("logger.", "callbacks.progress.")
_FIRST = ("model", "optim", "schedule", "data", "loss", "trainer", "strategy")
_LAST = ("name", "data.root", "seed")


@dataclass(frozen=True)
class Differences:
    keys: list[str] = field(default_factory=list)  # most important first, seed last
    derived: list[str] = field(default_factory=list)  # keys whose values follow from data.name, nccl.name, ...

    def title(self, key: str) -> str:
        """Return the last part of the key if it is unambiguous, else the key."""
        last = key.rpartition(".")[2]
        is_unique = sum(other.rpartition(".")[2] == last for other in {*self.keys, key}) == 1
        return last if is_unique and last not in ("name", "root", "args", "_target_") else key

    def describe(self, run: Run, keys: Sequence[str]) -> str:
        """Return the options of a run as text, such as "lr=0.1 seed=1"."""
        return " ".join(f"{printable(self.title(key))}={format_option(option(run, key))}" for key in keys)


def find_differences(runs: Sequence[Run]) -> Differences:
    """Return the options of the training itself in which the runs differ."""
    keys = [
        key
        for key in dict.fromkeys(key for run in runs for key in run.options)
        if is_option(key) and len({canonical(option(run, key)) for run in runs}) > 1
    ]
    typed = {key_of(word) for run in runs for word in str(run.summary.get("command") or "").split()}
    derived = [key for key in keys if key not in typed and _is_derived(runs, key, keys)]
    return Differences(sorted([key for key in keys if key not in derived], key=_importance), derived)


def is_option(key: str) -> bool:
    """Return whether a key is an option of the training itself."""
    return not (key in NOT_OPTIONS or f"{key}.".startswith(NOT_OPTIONS_BELOW) or removed(key))


def option(run: Run, key: str) -> Any:
    """Return the value of an option of a run. If the run lacks the key, because an older version did not have it,
    return the default; in groups that users may extend (callbacks, args), return None."""
    return run.options[key] if key in run.options else _defaults().get(key)


@cache
def _defaults() -> dict[str, Any]:
    return {path: key.default for path, key in declared("train").items() if not key.is_group}


def canonical(value: Any) -> str:
    """Return text that is equal for equal values, such as 1 and 1.0, but not for 1 and true."""
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, default=str)


def format_option(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else printable(shown(value))


def _importance(key: str) -> int:
    if key in _LAST:
        return len(_FIRST) + 1 + _LAST.index(key)
    group = key.partition(".")[0]
    return _FIRST.index(group) if group in _FIRST else len(_FIRST)


def _is_derived(runs: Sequence[Run], key: str, keys: Sequence[str]) -> bool:
    """Return whether the choice in the key's group, or that of the data, determines the value of the key. The net, too,
    determines the default name."""
    for group in ("data.name", "model.name" if key == "name" else f"{key.partition('.')[0]}.name"):
        if group in keys and key not in (group, "seed"):
            pairs = {(canonical(option(run, group)), canonical(option(run, key))) for run in runs}
            if len(pairs) == len({choice for choice, _ in pairs}):
                return True
    return False


# ---- the images that runs were validated on -------------------------------------------------------------------------

# Options that choose the validation images. Those of a seed or a fold are drawn from the same, so their runs compare.
_OF_IMAGES = ("data.name", "data._target_", "data.root", "data.labels", "data.val_dir", "data.val_fraction",
              "data.groups", "data.images_dir")  # fmt: skip


def image_sets(runs: Sequence[Run]) -> list[int]:
    """Return a number for each run, equal for runs that were validated on the same images or on parts of the same
    ones, as far as their options and the number of images tell: 0 for those of the first run. A run that has not
    been validated goes with the first one of the same options."""
    chosen = [tuple((key, canonical(option(run, key))) for key in _image_keys(run)) for run in runs]
    counts = [_num_images(run) for run in runs]
    usual = {key: count for key, count in zip(chosen[::-1], counts[::-1], strict=True) if count is not None}
    number_of = dict[object, int]()
    return [
        number_of.setdefault((key, usual.get(key) if count is None else count), len(number_of))
        for key, count in zip(chosen, counts, strict=True)
    ]


def _num_images(run: Run) -> int | None:
    """Return the number of images of the last validation; None: there was none, or another seed or fold has another
    number."""
    if run.options.get("data.val_fraction") is not None:
        return None
    _, counted = plots.column(run.metrics, "num_val_images_counted")
    return run.summary.get("num_val_images", int(counted[-1]) if len(counted) else None)


def _image_keys(run: Run) -> list[str]:
    """Return the options that choose the validation images of a run."""
    return [*_OF_IMAGES, *(key for key in run.options if key.startswith("data.args."))]


def _set_name(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else str(number + 1)


def _say_sets(runs: Sequence[Run], differences: Differences, sets: Sequence[int]) -> str:
    """Return the sentence before the table, "" if all runs were validated on the same images."""
    if not any(sets):
        return ""
    names = list[str]()
    for number in range(max(sets) + 1):
        members = [run for run, of_run in zip(runs, sets, strict=True) if of_run == number]
        count = next(filter(None, map(_num_images, members)), None)
        keys = [key for key in differences.keys if key in _image_keys(members[0])]
        words = ["" if count is None else count_noun(count, "image"), differences.describe(members[0], keys)]
        names.append(" ".join([_set_name(number), *([f"({', '.join(filter(None, words))})"] if any(words) else [])]))
    return (
        f"The runs were validated on {len(names)} sets of images, and compare only within a set: "
        f"{printable(shorten_list(names, 10))}."
    )


# ---- the table ------------------------------------------------------------------------------------------------------

MOST_OPTIONS = 6  # columns of options; further ones are in the CSV only
CSV_COLUMNS = ("num_devices", "num_nodes", "global_batch_size", "precision", "num_parameters", "num_train_images",
               "num_val_images", "data_wait_frac", "git_commit", "finished_at")  # fmt: skip
OVER_SEEDS = ("num_seeds", "mean_over_seeds", "std_over_seeds")  # in the CSV only, for each run of a group


def sort_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with the best score first. Those of the largest set of validation images come first; within a
    set, runs with another score than the first follow, and those without validation come last. Ties keep their
    order."""
    sets = dict(zip((run.folder for run in runs), image_sets(runs), strict=True))
    sizes = Counter(sets.values())
    scores = [run.score.name for run in runs if run.best is not None]

    def place(run: Run) -> tuple[int, int, int, float]:
        number = sets[run.folder]
        if run.best is None:
            return -sizes[number], number, len(scores), 0.0
        best = -run.best if run.score.mode == "max" else run.best
        return -sizes[number], number, scores.index(run.score.name), best

    return sorted(runs, key=place)


def leaderboard(runs: Sequence[Run], differences: Differences) -> Table:
    """Return the table of runs. runs: the runs in the order of the rows. The numbering restarts with each set of
    validation images."""
    sets = image_sets(runs)
    places = [sets[: number + 1].count(of_run) for number, of_run in enumerate(sets)]
    options = []
    for index, key in enumerate(differences.keys):
        drop = index + (2 if index < 3 else 30)
        is_number = all(_is_number(option(run, key)) for run in runs)
        title = printable(differences.title(key))
        options.append(Column(key, title, drop, right=is_number, shown=index < MOST_OPTIONS))
    keeps_state = len({run.state for run in runs}) > 1
    scores = _scores(runs)
    further = _further(runs, scores)
    columns = [
        Column("place", "#"), Column("run", "run", right=False),
        *(Column(f"best/val/{each.name}", f"{each.title} %" if each.is_share else each.title) for each in scores),
        Column("val_images", "on", right=False, shown=any(sets)),
        *options,
        Column("state", "state", drop=1 if keeps_state else 10, right=False), Column("epochs", "epochs", drop=20),
        Column("best_epoch", "best epoch", drop=990),
        *(Column(f"val/{each.name}", f"{each.title} %" if each.is_share else f"val {each.title}", drop=970 - 10 * index)
          for index, each in enumerate(further)),
        Column("images_per_s", "images/s", drop=850),
        Column("train_s", "time", drop=980),
        *(Column(key, "", shown=False) for key in ("max_epochs", *CSV_COLUMNS, *OVER_SEEDS, "folder")),
    ]  # fmt: skip
    names = short_names([run.folder for run in runs])
    groups = {run.folder: group for group in over_seeds(runs, differences) for run in group.runs}
    rows = [
        [
            Cell(place, str(place)),
            text_cell(name),
            *_cells(run, differences, scores, further, _set_name(number), groups.get(run.folder)),
        ]
        for place, run, name, number in zip(places, runs, names, sets, strict=True)
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
    return Table(columns, rows, title, notes, _say_sets(runs, differences, sets))


def short_names(folders: Sequence[Path]) -> list[str]:
    """Return the paths relative to the deepest folder that they all share."""
    common = os.path.commonpath([str(folder.parent) for folder in folders]) if folders else ""
    return [printable(os.path.relpath(folder, common)) for folder in folders]


def _scores(runs: Sequence[Run]) -> list[Figure]:
    """Return the scores of the runs, each once."""
    return list({run.score.name: run.score for run in runs}.values())


def _further(runs: Sequence[Run], scores: Sequence[Figure]) -> list[Figure]:
    """Return the figures of the best epochs besides the scores: fractions first, and those of the tasks before
    others."""
    found = {name for run in runs for name in run.at_best} - {each.name for each in scores}
    known = [figure for name, figure in FIGURES.items() if name in found]
    others = [figure_of(name) for name in sorted(found - FIGURES.keys())]
    return sorted([*known, *others], key=lambda figure: not figure.is_share)


def _cells(
    run: Run,
    differences: Differences,
    scores: Sequence[Figure],
    further: Sequence[Figure],
    set_name: str,
    group: "OverSeeds | None",
) -> list[Cell]:
    values = [option(run, key) for key in differences.keys]
    limit = "" if run.max_epochs is None else f"/{run.max_epochs}"
    seeds = (len(group.values), group.mean, group.std) if group else (None,) * len(OVER_SEEDS)
    csv_only = [run.max_epochs, *(run.summary.get(key) for key in CSV_COLUMNS), *seeds, run.folder]
    return [
        *(figure_cell(each, run.best if each == run.score else None) for each in scores),
        text_cell(set_name),
        *(Cell(value if _is_number(value) else format_option(value), format_option(value)) for value in values),
        text_cell(run.state),
        Cell(run.epochs, f"{run.epochs}{limit}"),
        Cell(run.best_epoch, "-" if run.best_epoch is None else str(run.best_epoch)),
        *(figure_cell(each, run.at_best.get(each.name)) for each in further),
        number_cell(run.images_per_s),
        Cell(run.train_s, "-" if run.train_s is None else duration(run.train_s)),
        *(Cell(None if value is None else printable(str(value)), "") for value in csv_only),
    ]


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


# ---- the score over the seeds ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OverSeeds:
    """Finished runs on one set of validation images that differ only in the seed."""

    runs: list[Run]
    set_number: int
    score: Figure
    values: list[float]  # best score of each seed, the mean if several runs have the seed

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def std(self) -> float:
        """Return the sample standard deviation."""
        return stdev(self.values)


def over_seeds(runs: Sequence[Run], differences: Differences) -> list[OverSeeds]:
    """Return the groups of at least two seeds: within a set of images and a score, the best mean first."""
    alike = dict[tuple[Any, ...], list[Run]]()
    for run, number in zip(runs, image_sets(runs), strict=True):
        if run.state == "finished" and run.best is not None:
            options = [canonical(option(run, key)) for key in differences.keys if key != "seed"]
            alike.setdefault((number, run.score, *options), []).append(run)
    groups = list[OverSeeds]()
    for (number, score, *_), members in alike.items():
        bests = dict[str, list[float]]()
        for run in members:
            bests.setdefault(canonical(option(run, "seed")), []).append(run.best or 0.0)
        if len(bests) > 1:
            groups.append(OverSeeds(members, number, score, [*map(fmean, bests.values())]))
    scores = _scores(runs)

    def order(group: OverSeeds) -> tuple[int, int, float]:
        return group.set_number, scores.index(group.score), -group.mean if group.score.mode == "max" else group.mean

    return sorted(groups, key=order)


def seeds_table(runs: Sequence[Run], differences: Differences) -> Table | None:
    """Return the table of the groups, with the options that tell them apart; None if there are none. The numbering
    restarts with each set of validation images."""
    if not (groups := over_seeds(runs, differences)):
        return None
    firsts, sets = [group.runs[0] for group in groups], [group.set_number for group in groups]
    keys = [
        key for key in differences.keys if key != "seed" and len({canonical(option(run, key)) for run in firsts}) > 1
    ]
    scores = _scores(firsts)
    columns = [
        Column("place", "#"),
        Column("options", "options", right=False, shown=bool(keys)),
        *(Column(f"best/val/{each.name}", f"{each.title} %" if each.is_share else each.title) for each in scores),
        Column("val_images", "on", right=False, shown=any(image_sets(runs))),
        Column("num_seeds", "seeds"),
    ]
    rows = list[list[Cell]]()
    for index, group in enumerate(groups):
        mean, std = (figure_cell(group.score, value).text for value in (group.mean, group.std))
        place = sets[: index + 1].count(group.set_number)
        rows.append([
            Cell(place, str(place)),
            text_cell(differences.describe(group.runs[0], keys)),
            *(Cell(group.mean, f"{mean} ± {std}") if each == group.score else number_cell(None) for each in scores),
            text_cell(_set_name(group.set_number)),
            Cell(len(group.values), str(len(group.values))),
        ])  # fmt: skip
    note = "± is the sample standard deviation over the seeds of finished runs that differ in nothing else."
    return Table(columns, rows, "Over seeds", [note])


# ---- the curves -----------------------------------------------------------------------------------------------------

MAX_LABEL = 90  # characters
GREY = "#C4C8CE"  # of curves for which the palette has no colour


def draw_curves(runs: Sequence[Run], differences: Differences, title: str) -> "diagrams.Figure":
    """Draw the score and the training loss. runs: best first, whose score is drawn; those for which the palette has no
    colour are grey."""
    colored = plots.PALETTE[: len(runs)]
    sets = image_sets(runs)
    order = "Best first of each set of validation images" if any(sets) else "Best first" if len(runs) > 1 else ""
    figure = plots.new_figure(11, 5.4 + 0.2 * len(colored), title, order)
    score = runs[0].score
    panels = {f"val/{score.name}": f"Validation {score.title}", "train/loss": "Training loss"}
    for axes, (name, heading) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        lines = [plots.column(run.metrics, name) for run in runs]
        for number, (epochs, values) in reversed(list(enumerate(lines))):  # the best run is drawn last, on top
            color = colored[number] if number < len(colored) else GREY
            axes.plot(epochs, values, color=color, marker="o", markersize=3)
        plots.style_axes(axes, heading, [values for _, values in lines], percent=figure_of(name).is_share)
    entries = [
        f"{f'on {_set_name(number)}  ' if any(sets) else ''}"
        f"{f'no {run.score.title}' if run.best is None else run.score.text(run.best)}  {label}  ({run.state})"
        for run, label, number in zip(runs, labels(runs, differences), sets, strict=True)
    ]
    handles = figure.axes[0].get_lines()[::-1][: len(colored)]
    legend = figure.legend(handles, entries[: len(colored)], loc="outside lower left", frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def labels(runs: Sequence[Run], differences: Differences) -> list[str]:
    """Return a label for each run, such as "sweep/0: lr=0.1 seed=1"."""
    texts = [differences.describe(run, differences.keys) for run in runs]
    names = [shorten_middle(name, MAX_LABEL // 2) for name in short_names([run.folder for run in runs])]
    return [
        textwrap.shorten(f"{name}: {text}" if text else name, MAX_LABEL, placeholder=" …", break_on_hyphens=False)
        for name, text in zip(names, texts, strict=True)
    ]
