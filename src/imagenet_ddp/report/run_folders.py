"""Find the run folders in a run, a sweep, a study or any folder above them, and read the facts about a run from its
folder. A run that was stopped early has gaps."""

import csv
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.config.figures import TOP1, Figure, best_metric, figure_of
from imagenet_ddp.config.section import leaves
from imagenet_ddp.config.stored import not_plain
from imagenet_ddp.runs.folder import is_locked
from imagenet_ddp.runs.plots import Table, best_epoch, column, read_metrics
from imagenet_ddp.runs.read_results import read_results
from imagenet_ddp.runs.result_files import read_config
from imagenet_ddp.system.files import UnusualFileError

MARKER = "imagenet_ddp.report"  # among the first bytes of each file that report writes, except CSV files
OF_TRAINING = {"data", "model", "optim", "trainer", "resume"}  # keys that only the config.yaml of a training has
STATES = ("finished", "running", "interrupted")


@dataclass(frozen=True)
class Run:
    """The facts about a run. None means unknown. Accuracies are fractions."""

    folder: Path
    state: str  # one of STATES
    options: dict[str, Any]  # key path -> value, of the resolved config.yaml
    metrics: Table  # column -> (number of epochs,), NaN where a cell holds no number
    summary: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # parts of its files that are left out
    score: Figure = TOP1  # of a validation, which selects the best weights
    best: float | None = None  # best value of the score
    best_epoch: int | None = None
    at_best: dict[str, float] = field(default_factory=dict)  # figure -> value in the validation of the best epoch
    epochs: int = 0  # number of completed epochs
    images_per_s: float | None = None  # median over the epochs after the first, which includes start-up
    train_s: float | None = None
    train_cpu_s: float | None = None  # over all processes, including data loader workers

    @property
    def is_trained(self) -> bool:
        """Return whether the run was to train by steps: experiment=probe fits the last layer alone, by a regression."""
        return self.options.get("trainer.max_epochs") != 0

    @property
    def is_chosen(self) -> bool:
        """Return whether the best weights were chosen by several validations."""
        return len(column(self.metrics, f"val/{self.score.name}")[0]) > 1

    @property
    def max_epochs(self) -> int | None:
        """Return the number of epochs to train; None if it is not limited, or depends on the time."""
        most = None if self.options.get("budget_min") else self.options.get("trainer.max_epochs")
        return most if isinstance(most, int) and most >= 0 else None


def find_runs(top: Path) -> list[Run]:
    """Return the runs in `top`, including `top`, sorted by path. Hidden and unreadable folders and links to folders
    are not entered."""
    runs = []
    for folder, subfolders, files in os.walk(top.resolve()):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        if "config.yaml" in files and (run := read_run(Path(folder))):
            runs.append(run)
    return sorted(runs, key=lambda run: run.folder)


def read_run(folder: Path) -> Run | None:
    """Return the run in a folder; None if the folder has no config.yaml of a training."""
    config, problems = read_config(folder), list[str]()
    if not config.keys() >= OF_TRAINING or not_plain(config):
        return None
    summary = read_results(folder / "summary.json", problems) if (folder / "summary.json").exists() else {}
    path, metrics = folder / "metrics.csv", {"epoch": np.empty(0)}
    try:
        metrics = read_metrics(path) if path.is_file() else metrics
    except (OSError, ValueError, csv.Error) as error:
        problems.append(f"{path.name} {error if isinstance(error, UnusualFileError) else 'is no table of numbers'}")
    _, rates = column(metrics, "images_per_s")
    state = "finished" if summary.get("finished") else "running" if is_locked(folder) else "interrupted"
    return Run(
        folder, state, {key: value for key, value in leaves(config).items() if value != {}}, metrics, summary, problems,
        *_best(metrics, summary),
        epochs=summary.get("epochs") or int(max(metrics["epoch"], default=0)),
        images_per_s=float(np.median(rates[1:] if len(rates) > 1 else rates)) if len(rates) else None,
        train_s=summary.get("train_s", _last(metrics, "train_s")),
        train_cpu_s=summary.get("train_cpu_s"),
    )  # fmt: skip


def _best(metrics: Table, summary: Mapping[str, Any]) -> tuple[Figure, float | None, int | None, dict[str, float]]:
    """Return (the score, its best value, the epoch of that, counted from 1, the figures of that validation, if it has a
    row in metrics.csv)."""
    name = best_metric([*summary, *metrics])
    score, epoch, step = figure_of(name), summary.get("best_epoch"), summary.get("best_step")
    best = summary.get(f"best/{name}", _last(metrics, f"best/{name}"))
    if best is None:
        return score, None, None, {}
    if step is not None and "step" in metrics:
        is_best = metrics["step"] == step
    else:
        is_best = metrics["epoch"] == (best_epoch(metrics, name, best) if epoch is None else epoch)
    is_best &= np.isclose(metrics.get(name, np.nan), best)
    if not is_best.any():
        return score, best, epoch, {}
    here = {name: values[is_best] for name, values in metrics.items()}
    found = {name.removeprefix("val/"): _last(here, name) for name in here if name.startswith("val/")}
    figures = {name: value for name, value in found.items() if value is not None}
    return score, best, math.ceil(here["epoch"][-1]) if epoch is None else epoch, figures


def _last(metrics: Table, name: str) -> float | None:
    _, values = column(metrics, name)
    return float(values[-1]) if len(values) else None
