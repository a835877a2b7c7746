"""Compare recipes over seeds, for docs/recipes.md: medians, ranges, and Welch's t-test against one recipe.

    python scripts/recipe_table.py DIR... [against=RECIPE] > docs/results.csv

Finished runs whose options differ only in the seed, on the same data set and kind of machine, are one recipe. The table
goes to the terminal, or as CSV with every column to a file. RECIPE is a part of a row's name, or a run folder; the
default is the recipe with the best median.
"""

import math
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from statistics import mean, median, stdev, variance

import numpy as np

from imagenet_ddp.config.keys import key_of
from imagenet_ddp.report.differences import (
    Differences,
    canonical,
    find_differences,
    format_option,
    is_option,
    option,
)
from imagenet_ddp.report.leaderboard import number_cell, percent_cell
from imagenet_ddp.report.run import Run, as_number, find_runs
from imagenet_ddp.system.text import count_noun, printable
from imagenet_ddp.system.text_table import Cell, Column, Table, as_csv, as_text, text_cell

OWN_COLUMNS = ("data.name", "data.root", "seed", "name")  # not in labels: they have a column, or identify one run
OF_ONE_RUN = ("seed", "name", "hydra.run.dir", "hydra.sweep.dir")

TIMES = ("train_s", "train_cpu_s")
OF_SUMMARY = ("num_train_images", "num_val_images", "num_classes", "precision", "git_commit")


@dataclass(frozen=True)
class Recipe:
    runs: list[Run]  # one per seed, in the order of the seeds
    label: str  # the experiment, and the typed options in which the recipes differ
    command: str  # a command that trains all seeds, with FOLDER in place of the data's folder
    repeated: list[Run] = field(default_factory=list)  # left out, because a newer run has the same seed

    @property
    def data(self) -> str:
        return _data(self.runs[0])

    @property
    def hardware(self) -> str:
        return _hardware(self.runs[0])

    def values(self, attribute: str) -> list[float]:
        """Return one value per seed; [] if a run lacks the value. attribute: name of a numeric attribute of Run."""
        values = [getattr(run, attribute) for run in self.runs]
        return [] if None in values else values


def group_recipes(runs: Sequence[Run], differences: Differences) -> list[Recipe]:
    """Return the recipes in the order of their first runs. differences: the differences between all runs."""
    keys = [key for key in (*differences.keys, *differences.derived) if key not in ("data.root", "seed", "name")]
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        if run.state == "finished" and run.best_top1 is not None:
            group = (*(canonical(option(run, key)) for key in keys), *_data_set(run), _hardware(run))
            groups.setdefault(group, []).append(run)
    newest = [_one_per_seed(group) for group in groups.values()]
    return [
        Recipe(kept, label, _command(kept, differences), [run for run in group if all(run is not one for one in kept)])
        for group, kept, label in zip(groups.values(), newest, _labels(newest, differences), strict=True)
    ]


def find_recipe(recipes: Sequence[Recipe], wanted: str) -> int | None:
    """Return the position of the recipe that `wanted` identifies: by its label, by a part of its label that no other
    label contains, or by the folder of one of its runs (including runs that a newer run replaced). Returns None if
    there is no such recipe, or if there are several."""
    labels, folder = [recipe.label for recipe in recipes], Path(wanted).resolve()
    for found in (
        [number for number, label in enumerate(labels) if label == wanted],
        [number for number, label in enumerate(labels) if wanted in label],
        [n for n, recipe in enumerate(recipes) if folder in [run.folder for run in (*recipe.runs, *recipe.repeated)]],
    ):
        if len(found) == 1:
            return found[0]
    return None


def _one_per_seed(group: Sequence[Run]) -> list[Run]:
    """Keep only the newest run of each seed, because a repeated seed is not an independent sample."""
    by_time = sorted(group, key=lambda run: str(run.summary.get("finished_at") or ""))
    newest = {canonical(option(run, "seed")): run for run in by_time}
    return sorted(newest.values(), key=lambda run: as_number(option(run, "seed")) or 0)


def _labels(groups: Sequence[Sequence[Run]], differences: Differences) -> list[str]:
    first = [group[0] for group in groups]
    keys = [key for key in differences.keys if key not in OWN_COLUMNS]
    shown = []
    for run in first:
        typed = {key_of(word) for word in _words(run)}
        shown.append([key for key in keys if key in typed or key.removesuffix(".name") in typed])
    labels = [_label(run, own, differences) for run, own in zip(first, shown, strict=True)]
    # Different options can yield equal labels, because resumed runs and older versions do not record what was typed.
    seen = [(label, _data(run)) for label, run in zip(labels, first, strict=True)]
    for clash in [each for each, number in Counter(seen).items() if number > 1]:
        members = [number for number, each in enumerate(seen) if each == clash]
        more = find_differences([first[number] for number in members]).keys
        for number in members:
            own = [key for key in keys if key in shown[number] or key in more]
            labels[number] = _label(first[number], own, differences)
    return labels


def _label(run: Run, keys: Sequence[str], differences: Differences) -> str:
    experiment = printable(str(run.summary.get("experiment") or ""))
    return f"{experiment} {differences.describe(run, keys)}".strip() or "no experiment"


def _command(runs: Sequence[Run], differences: Differences) -> str:
    """Return a command that trains all seeds: the command of the first run, without the options that belong to a single
    run or do not affect the training. Returns "" if that command is unknown, or resumed a run."""
    words, run = _words(runs[0]), runs[0]
    if not words or any(key_of(word) in ("resume", "sweep.resume") and not word.endswith("=auto") for word in words):
        return ""
    is_sweep = bool({"-m", "--multirun"} & {*words})
    kept = []
    for word in words:
        key, equals, _ = word.partition("=")
        if word in ("-m", "--multirun") or not _is_of_recipe(key_of(word)):
            continue
        if key_of(word) == "data.root":
            word = f"{key}=FOLDER"
        elif is_sweep and key_of(word) == "experiment":
            word = f"{key}={run.summary.get('experiment')}"
        elif is_sweep and equals:
            options = [name for name in (key_of(word), f"{key_of(word)}.name") if name in differences.keys]
            word = f"{key}={format_option(option(run, options[0]))}" if options else word
        kept.append(word)
    seeds = [format_option(option(run, "seed")) for run in runs]
    kept = [*(["-m"] if len(seeds) > 1 else []), *kept, f"seed={','.join(seeds)}"]
    return printable(f"python -m imagenet_ddp.train {shlex.join(kept)}")


def _is_of_recipe(key: str) -> bool:
    return key == "allow_targets" or (is_option(key) and key not in OF_ONE_RUN)


def _words(run: Run) -> list[str]:
    """Return the options that were typed after the name of the command; [] if the run does not record them."""
    _, _, typed = str(run.summary.get("command") or "").partition("imagenet_ddp.train")
    try:
        return shlex.split(typed)
    except ValueError:
        return []


def _data(run: Run) -> str:
    """Return the source and the name of its folder, such as "imagefolder pets"."""
    data, root = run.summary.get("data"), option(run, "data.root")
    of_options = [option(run, "data.name"), PurePath(root).name if isinstance(root, str) else None]
    names = data.values() if isinstance(data, dict) else of_options  # an older version did not store them
    return printable(" ".join(str(name) for name in names if isinstance(name, str)))


def _data_set(run: Run) -> list[str]:
    """Return values that identify a data set: its name and size, because its folder may differ between machines."""
    counts = (run.summary.get(key) for key in ("num_train_images", "num_val_images", "num_classes"))
    return [_data(run), *map(canonical, counts)]


def _hardware(run: Run) -> str:
    return printable(str(run.summary.get("hardware") or ""))


def recipe_table(recipes: Sequence[Recipe]) -> Table:
    """Return a table with one row per recipe, in the given order, which compares each recipe with the first."""
    several = len(recipes) > 1
    same_data, same_hardware = (len({value(r) for r in recipes}) == 1 for value in (_data_words, _hardware_words))
    columns = [
        Column("recipe", "recipe", right=False),
        Column("data", "data", drop=970, right=False, shown=not same_data),
        Column("num_seeds", "seeds"),
        Column("top1_median", "top-1 %"), Column("top1_range", "range", drop=10),
        Column("top1_difference", "difference", shown=several), Column("top1_p", "p", shown=several),
        Column("top5_median", "top-5 %", drop=960), Column("epochs", "epochs", drop=940),
        Column("train_s_median", "seconds", drop=950),
        Column("train_cpu_s_median", "CPU-s", drop=30),
        Column("train_cpu_s_ratio", "ratio", drop=30, shown=several),
        Column("train_cpu_s_p", "p of ratio", drop=930, shown=several),
        Column("hardware", "hardware", drop=980, right=False, shown=not same_hardware),
        *(Column(key, "", shown=False) for key in (
            "top1_min", "top1_max", "top1_mean", "top1_sd", "train_s_min", "train_s_max", "train_cpu_s_min",
            "train_cpu_s_max", "train_s_ratio", "train_s_p", "compared_with", "seeds", *OF_SUMMARY, "finished_at",
            "command")),
    ]  # fmt: skip
    rows = [_row(recipe, recipes[0]) for recipe in recipes]
    notes = ["Values are medians over the seeds of finished runs. top-1 and top-5 belong to the best epoch of a run."]
    if several:
        notes.append(
            f"Compared with {recipes[0].label}: difference of the medians in percentage points, ratio of the CPU "
            "seconds. p is the p-value of Welch's two-sided t-test between the seeds of both recipes, not corrected "
            "for the number of rows."
        )
    if num_repeated := sum(len(recipe.repeated) for recipe in recipes):
        notes.append(f"Left out, because a newer run has the same seed: {count_noun(num_repeated, 'run')}.")
    notes += [f"Data: {_data_words(recipes[0])}."] if same_data else []
    notes += [f"Hardware: {_hardware_words(recipes[0])}."] if same_hardware and recipes[0].hardware else []
    return Table(columns, rows, "Recipes over seeds", notes)


def _row(recipe: Recipe, reference: Recipe) -> list[Cell]:
    top1, top5, last = recipe.values("best_top1"), recipe.values("top5"), recipe.runs[-1]
    same = recipe is reference
    difference = None if same else median(top1) - median(reference.values("best_top1"))
    p = {name: None if same else welch_p(recipe.values(name), reference.values(name)) for name in ("best_top1", *TIMES)}
    medians, ratios = {}, {}
    for name in TIMES:
        own, other = recipe.values(name), reference.values(name)
        medians[name] = median(own) if own else None
        ratios[name] = median(own) / median(other) if own and other and not same and median(other) else None
    epochs = sorted({run.epochs for run in recipe.runs if run.epochs is not None})
    seeds = [format_option(option(run, "seed")) for run in recipe.runs]
    ranges = [limit for name in TIMES for limit in _limits(recipe.values(name))]
    hidden = [
        *_limits(top1), mean(top1), stdev(top1) if len(top1) > 1 else None, *ranges, ratios["train_s"], p["train_s"],
        None if same else reference.label, " ".join(seeds), *(last.summary.get(key) for key in OF_SUMMARY),
        max(str(run.summary.get("finished_at") or "") for run in recipe.runs), recipe.command,
    ]  # fmt: skip
    return [
        text_cell(recipe.label),
        text_cell(_data_words(recipe)),
        Cell(len(seeds), str(len(seeds))),
        percent_cell(median(top1)),
        text_cell(f"{100 * min(top1):.2f} to {100 * max(top1):.2f}" if len(top1) > 1 else "-"),
        Cell(difference, "-" if difference is None else f"{100 * difference:+.2f}"),
        _p_cell(p["best_top1"]),
        percent_cell(median(top5) if top5 else None),
        Cell(" ".join(map(str, epochs)), " ".join(map(str, epochs)) or "-"),
        _seconds_cell(medians["train_s"]),
        _seconds_cell(medians["train_cpu_s"]),
        Cell(ratios["train_cpu_s"], "-" if ratios["train_cpu_s"] is None else f"{ratios['train_cpu_s']:.2f}"),
        _p_cell(p["train_cpu_s"]),
        text_cell(_hardware_words(recipe)),
        *(Cell(value if isinstance(value, int | float) else printable(str(value or "")), "") for value in hidden),
    ]


def _limits(values: Sequence[float]) -> tuple[float | None, float | None]:
    return (min(values), max(values)) if values else (None, None)


def _p_cell(p: float | None) -> Cell:
    return Cell(p, "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}")


def _seconds_cell(value: float | None) -> Cell:
    """Format seconds without decimals, or with four significant digits below 100."""
    return number_cell(value) if value is None or value < 100 else Cell(value, f"{value:.0f}")


def _data_words(recipe: Recipe) -> str:
    """Return a description of the data, such as "imagefolder pets, 5,000 + 500 images, 10 classes"."""
    summary = recipe.runs[-1].summary
    train, val, classes = (summary.get(key) for key in ("num_train_images", "num_val_images", "num_classes"))
    counts = f", {train:,} + {val:,} images" if isinstance(train, int) and isinstance(val, int) else ""
    return recipe.data + counts + (f", {count_noun(classes, 'class')}" if isinstance(classes, int) else "")


def _hardware_words(recipe: Recipe) -> str:
    return recipe.hardware or "unknown"


def welch_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the two-sided p-value, or None if a sample has fewer than two values, or if neither sample varies."""
    if min(len(a), len(b)) < 2:
        return None
    parts = [variance(values) / len(values) for values in (a, b)]
    if not (total := sum(parts)):
        return None
    t = (mean(a) - mean(b)) / math.sqrt(total)
    # the degrees of freedom according to the Welch-Satterthwaite equation
    freedom = total**2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, (a, b), strict=True))
    return two_sided_p(t, freedom)


def two_sided_p(t: float, freedom: float) -> float:
    """Return the probability that a value of Student's t-distribution is at least as far from 0 as t. freedom: degrees
    of freedom, at least 1, not necessarily an integer."""
    # The substitution t = sqrt(freedom) tan(angle) turns the density into cos(angle) ** (freedom - 1), which has no
    # infinite tail. The angle is measured from its end, pi / 2. The integral is over the square root of the angle,
    # because the integrand is smooth in it.
    ends = np.sqrt([math.atan2(math.sqrt(freedom), abs(t)), math.pi / 2])
    nodes, weights = np.polynomial.legendre.leggauss(64)
    points = np.outer(ends, (nodes + 1) / 2)
    tail, whole = ends * ((2 * points * np.sin(points**2) ** (freedom - 1)) @ weights)
    return float(tail / whole)


def main(argv: list[str]) -> None:
    folders = [Path(word) for word in argv if not word.startswith("against=")]
    runs = [*{run.folder: run for folder in folders for run in find_runs(folder)}.values()]
    recipes = group_recipes(runs, find_differences(runs))
    if not recipes:
        sys.exit("There must be a finished run with validation, but there is none.")
    recipes.sort(key=lambda recipe: -median(recipe.values("best_top1")))
    wanted = next((word.partition("=")[2] for word in argv if word.startswith("against=")), None)
    reference = 0 if wanted is None else find_recipe(recipes, wanted)
    if reference is None:
        sys.exit(f"against must name one of the recipes {', '.join(recipe.label for recipe in recipes)}, got {wanted}.")
    recipes.insert(0, recipes.pop(reference))
    table = recipe_table(recipes)
    if sys.stdout.isatty():
        print(table.title, "", *as_text(table, 120)[0], "", *table.notes, sep="\n")
    else:
        print(as_csv(table).decode(), end="")


if __name__ == "__main__":
    sys.exit(__doc__) if {*sys.argv[1:]} <= {"-h", "--help"} else main(sys.argv[1:])
