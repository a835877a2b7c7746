"""Put runs in order, and tell which of them were validated on the same images, because only these can be ranked."""

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from imagenet_ddp.config.figures import LOSS, Figure
from imagenet_ddp.report.differing_options import Differences, canonical, find_differences, option
from imagenet_ddp.report.run_folders import Run
from imagenet_ddp.runs import plots
from imagenet_ddp.system.text import count_noun, printable, shorten_list

# Options that choose the validation images. Those of a seed or a fold are drawn from the same, so their runs compare.
_OF_IMAGES = ("data.name", "data._target_", "data.root", "data.labels", "data.val_dir", "data.val_fraction",
              "data.groups", "data.images_dir")  # fmt: skip


@dataclass(frozen=True)
class ComparedRuns:
    """Runs in the order of their rows, with what tells them apart.

    set_of: a number for each run, equal for runs that were validated on the same images: 0 for those of the first.
    """

    runs: list[Run]
    differences: Differences
    set_of: list[int]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "ComparedRuns":
        """Sort the runs: those of the largest set of validation images first, and within a set, the best. There, runs
        with another score than the first follow, and those without validation come last. Of equal scores, the loss
        decides, as for best.ckpt."""
        sets, scores = image_sets(runs), [run.score.name for run in runs if run.best is not None]
        sizes = Counter(sets)

        def place(number: int) -> tuple[int, int, int, float, float]:
            run, of_run = runs[number], sets[number]
            if run.best is None:
                return -sizes[of_run], of_run, len(scores), 0.0, 0.0
            best = -run.best if run.score.mode == "max" else run.best
            loss = run.at_best.get(LOSS.name, math.inf)
            return -sizes[of_run], of_run, scores.index(run.score.name), best, loss

        order = sorted(range(len(runs)), key=place)
        ordered, number_of = [runs[number] for number in order], dict[int, int]()
        set_of = [number_of.setdefault(sets[number], len(number_of)) for number in order]
        return cls(ordered, find_differences(ordered), set_of)

    @property
    def several_sets(self) -> bool:
        return any(self.set_of)

    @cached_property
    def scores(self) -> list[Figure]:
        """Return the scores of the runs, each once."""
        return list({run.score.name: run.score for run in self.runs}.values())

    def say_sets(self) -> str:
        """Return the sentence before the table, "" if all runs were validated on the same images."""
        if not self.several_sets:
            return ""
        names = list[str]()
        for number in range(max(self.set_of) + 1):
            members = [run for run, of_run in zip(self.runs, self.set_of, strict=True) if of_run == number]
            count = next(filter(None, map(_num_images, members)), None)
            keys = [key for key in self.differences.keys if key in _image_keys(members[0])]
            words = ["" if count is None else count_noun(count, "image"), self.differences.describe(members[0], keys)]
            names.append(" ".join([set_name(number), *([f"({', '.join(filter(None, words))})"] if any(words) else [])]))
        return (
            f"The runs were validated on {len(names)} sets of images, and compare only within a set: "
            f"{printable(shorten_list(names, 10))}."
        )

    def names(self) -> list[str]:
        return short_names([run.folder for run in self.runs])


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


def set_name(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else str(number + 1)


def short_names(folders: Sequence[Path]) -> list[str]:
    """Return the paths relative to the deepest folder that they all share."""
    common = os.path.commonpath([str(folder.parent) for folder in folders]) if folders else ""
    return [printable(os.path.relpath(folder, common)) for folder in folders]


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
