"""Group finished runs that differ only in their seed. Each group is one recipe, on one data set and one kind of
machine."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from imagenet_ddp.cli.overrides import key_of
from imagenet_ddp.report.comparison.differences import (
    Differences,
    canonical,
    find_differences,
    format_option,
    is_option,
    option,
    printable,
)
from imagenet_ddp.report.run import Run, as_number

OWN_COLUMNS = ("data.name", "data.root", "seed", "name")  # not in labels: they have a column, or identify one run
OF_ONE_RUN = ("seed", "name", "hydra.run.dir", "hydra.sweep.dir")


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
        if run.state == "finished" and run.best_top1 is not None and run.options is not None:
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
