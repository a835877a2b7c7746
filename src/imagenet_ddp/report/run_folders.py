"""Find the run folders in a run, a sweep, a study or any folder above them, and read the facts about a run from its
folder. A run that was stopped early has gaps."""

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.config.keys import leaves
from imagenet_ddp.config.stored import not_plain
from imagenet_ddp.runs.folder import is_locked
from imagenet_ddp.runs.plots import Table, column, read_metrics
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
    best_top1: float | None = None  # highest val/top1
    best_epoch: int | None = None
    top5: float | None = None  # in the best epoch
    loss: float | None = None  # val/loss in the best epoch
    epochs: int = 0  # number of completed epochs
    images_per_s: float | None = None  # median over the epochs after the first, which includes start-up
    train_s: float | None = None
    train_cpu_s: float | None = None  # over all processes, including data loader workers

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


def _best(metrics: Table, summary: Mapping[str, Any]) -> tuple[float | None, int | None, float | None, float | None]:
    """Return (best top-1, its epoch, top-5 and loss of that epoch). Top-5 and loss are None if the best validation was
    within an epoch, because it has no row in metrics.csv then."""
    best, epoch = summary.get("best/val/top1", _last(metrics, "best/val/top1")), summary.get("best_epoch")
    if best is None:
        return None, None, None, None
    epochs, top1 = column(metrics, "val/top1")
    at_best = next((each for each in epochs[np.isclose(top1, best)].tolist() if epoch in (None, each)), None)
    if at_best is None:
        return best, epoch, None, None
    here = {name: values[metrics["epoch"] == at_best] for name, values in metrics.items()}
    return best, int(at_best), _last(here, "val/top5"), _last(here, "val/loss")


def _last(metrics: Table, name: str) -> float | None:
    _, values = column(metrics, name)
    return float(values[-1]) if len(values) else None
