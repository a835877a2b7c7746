"""Make the table of recipes, with medians and ranges over the seeds, and a comparison of each recipe with the first."""

from collections.abc import Sequence
from statistics import mean, median, stdev

from imagenet_ddp.report.comparison.differences import format_option, option, printable
from imagenet_ddp.report.comparison.leaderboard import number_cell, percent_cell
from imagenet_ddp.report.comparison.recipes import Recipe
from imagenet_ddp.report.comparison.welch import welch_p
from imagenet_ddp.system.text import count_noun
from imagenet_ddp.system.text_table import Cell, Column, Table, text_cell

CODE = "    "  # start of a note that is a command, which is neither wrapped nor escaped, as in Markdown
TIMES = ("train_s", "train_cpu_s")
OF_SUMMARY = ("num_train_images", "num_val_images", "num_classes", "precision", "git_commit")


def recipe_table(recipes: Sequence[Recipe], *, commands: bool) -> Table:
    """Return a table with one row per recipe, in the given order, which compares each recipe with the first. commands:
    whether the notes end with a command for each row; the CSV always contains the commands."""
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
    for recipe in recipes:
        if commands and recipe.command:
            notes += [f"{recipe.label}:", f"{CODE}{recipe.command}"]
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
