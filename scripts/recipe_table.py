"""Compare recipes over seeds, for docs/recipes.md: medians, ranges, and Welch's t-test against one recipe.

    python scripts/recipe_table.py DIR... [against=RECIPE] > docs/results.csv

Finished runs whose options differ only in the seed, on the same data set and kind of machine, are one recipe. The table
goes to the terminal, or as CSV with every column to a file. RECIPE is a row's name or a run folder; the default is the
recipe with the best median.
"""

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, variance

import numpy as np

from imagenet_ddp.config.keys import key_of
from imagenet_ddp.report.leaderboard import (
    Differences,
    canonical,
    find_differences,
    format_option,
    is_option,
    number_cell,
    option,
    percent_cell,
)
from imagenet_ddp.report.run_folders import Run, find_runs
from imagenet_ddp.system.text_table import Cell, Column, Table, as_csv, as_text, text_cell

NOT_OF_RECIPE = ("data.name", "data.root", "seed", "name")  # they have a column, or identify one run
OF_ONE_RUN = ("seed", "name", "hydra.run.dir")


@dataclass(frozen=True)
class Recipe:
    runs: list[Run]  # one per seed, in the order of the seeds
    label: str  # the experiment, and the typed options in which the recipes differ
    command: str  # a command that trains all seeds, with FOLDER in place of the data's folder

    def values(self, attribute: str) -> list[float]:
        """Return one value per seed; [] if a run lacks the value. attribute: name of a numeric attribute of Run."""
        values = [getattr(run, attribute) for run in self.runs]
        return [] if None in values else values


def group_recipes(runs: Sequence[Run]) -> list[Recipe]:
    """Return the recipes in the order of their first runs. Of the runs with one seed, the newest counts, because a
    repeated seed is not an independent sample."""
    differences = find_differences(runs)
    keys = [key for key in (*differences.keys, *differences.derived) if key not in ("data.root", "seed", "name")]
    groups: dict[tuple[str, ...], dict[str, Run]] = {}
    for run in sorted(runs, key=lambda run: run.summary.get("finished_at") or ""):
        if run.state == "finished" and run.best_top1 is not None:
            group = (*(canonical(option(run, key)) for key in keys), data_words(run), hardware(run))
            groups.setdefault(group, {})[canonical(option(run, "seed"))] = run
    by_seed = [sorted(group.values(), key=lambda run: option(run, "seed")) for group in groups.values()]
    return [Recipe(each, _label(each[0], differences), _command(each)) for each in by_seed]


def _label(run: Run, differences: Differences) -> str:
    typed = {key_of(word) for word in _words(run)}
    keys = [key for key in differences.keys if key not in NOT_OF_RECIPE]
    shown = [key for key in keys if not typed or key in typed or key.removesuffix(".name") in typed]
    return f"{run.summary.get('experiment') or ''} {differences.describe(run, shown)}".strip() or "no experiment"


def _command(runs: Sequence[Run]) -> str:
    """Return a command that trains all seeds: that of the first run, without the options that belong to a single run or
    do not affect the training. "" if that command is unknown, a sweep, or a resumed run."""
    words = _words(runs[0])
    if not words or "-m" in words or any(key_of(word) == "resume" and not word.endswith("=auto") for word in words):
        return ""
    kept = [
        f"{key_of(word)}=FOLDER" if key_of(word) == "data.root" else word
        for word in words
        if key_of(word) not in OF_ONE_RUN and (is_option(key_of(word)) or key_of(word) == "allow_targets")
    ]
    seeds = ",".join(format_option(option(run, "seed")) for run in runs)
    return f"python -m imagenet_ddp.train {shlex.join([*(['-m'] if len(runs) > 1 else []), *kept, f'seed={seeds}'])}"


def _words(run: Run) -> list[str]:
    """Return the options that were typed after the name of the command; [] if the run does not record them."""
    _, _, typed = str(run.summary.get("command") or "").partition("imagenet_ddp.train")
    return shlex.split(typed)


def data_words(run: Run) -> str:
    """Return a description of the data, such as "imagefolder pets, 5,000 + 500 images, 10 classes"."""
    summary = run.summary
    name = " ".join(filter(None, (summary.get("data") or {"name": option(run, "data.name")}).values()))
    train, val, classes = (summary.get(key, 0) for key in ("num_train_images", "num_val_images", "num_classes"))
    return f"{name}, {train:,} + {val:,} images, {classes} classes"


def hardware(run: Run) -> str:
    return str(run.summary.get("hardware") or "unknown")


def recipe_table(recipes: Sequence[Recipe]) -> Table:
    """Return a table with one row per recipe, in the given order, which compares each recipe with the first."""
    columns = [
        Column("recipe", "recipe", right=False), Column("num_seeds", "seeds"),
        Column("top1_median", "top-1 %"), Column("top1_range", "range", drop=10),
        Column("top1_difference", "difference"), Column("top1_p", "p"),
        Column("top5_median", "top-5 %", drop=960), Column("epochs", "epochs", drop=940),
        Column("train_s_median", "seconds", drop=950), Column("train_cpu_s_median", "CPU-s", drop=30),
        Column("train_cpu_s_ratio", "ratio", drop=30), Column("train_cpu_s_p", "p of ratio", drop=930),
        *(Column(key, "", shown=False) for key in ("data", "hardware", "seeds", "finished_at", "command")),
    ]  # fmt: skip
    return Table(columns, [_row(recipe, recipes[0]) for recipe in recipes], "Recipes over seeds")


def _row(recipe: Recipe, reference: Recipe) -> list[Cell]:
    top1, cpu_s, others = recipe.values("best_top1"), recipe.values("train_cpu_s"), reference.values("train_cpu_s")
    is_other = recipe is not reference
    difference = median(top1) - median(reference.values("best_top1")) if is_other else None
    ratio = median(cpu_s) / median(others) if is_other and cpu_s and others else None
    epochs, seeds = recipe.runs[-1].epochs, [format_option(option(run, "seed")) for run in recipe.runs]
    finished_at = max(run.summary.get("finished_at") or "" for run in recipe.runs)
    last = recipe.runs[-1]
    return [
        text_cell(recipe.label),
        Cell(len(seeds), str(len(seeds))),
        percent_cell(median(top1)),
        text_cell(f"{100 * min(top1):.2f} to {100 * max(top1):.2f}" if len(top1) > 1 else "-"),
        Cell(difference, "-" if difference is None else f"{100 * difference:+.2f}"),
        _p_cell(welch_p(top1, reference.values("best_top1")) if is_other else None),
        percent_cell(median(top5) if (top5 := recipe.values("top5")) else None),
        Cell(epochs, str(epochs)),
        number_cell(median(seconds) if (seconds := recipe.values("train_s")) else None),
        number_cell(median(cpu_s) if cpu_s else None),
        Cell(ratio, "-" if ratio is None else f"{ratio:.2f}"),
        _p_cell(welch_p(cpu_s, others) if is_other else None),
        *map(text_cell, (data_words(last), hardware(last), " ".join(seeds), finished_at, recipe.command)),
    ]


def _p_cell(p: float | None) -> Cell:
    return Cell(p, "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}")


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
    recipes = group_recipes([*{run.folder: run for folder in folders for run in find_runs(folder)}.values()])
    if not recipes:
        sys.exit("There must be a finished run with validation, but there is none.")
    recipes.sort(key=lambda recipe: -median(recipe.values("best_top1")))
    wanted = next((word.partition("=")[2] for word in argv if word.startswith("against=")), recipes[0].label)
    folder = Path(wanted).resolve()
    for recipe in recipes:
        if recipe.label == wanted or folder in [run.folder for run in recipe.runs]:
            recipes = [recipe, *(other for other in recipes if other is not recipe)]
            break
    else:
        sys.exit(f"against must name one of the recipes {', '.join(recipe.label for recipe in recipes)}, got {wanted}.")
    table = recipe_table(recipes)
    if sys.stdout.isatty():
        print(table.title, "", *as_text(table, 120)[0], sep="\n")
    else:
        print(as_csv(table).decode(), end="")


if __name__ == "__main__":
    sys.exit(__doc__) if {*sys.argv[1:]} <= {"-h", "--help"} else main(sys.argv[1:])
