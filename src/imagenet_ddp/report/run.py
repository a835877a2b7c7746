"""Find the run folders in a run, a sweep, a study or any folder above them, and read the facts about a run from its
folder. Missing or broken files leave gaps, which are reported without an error."""

import csv
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.config.keys import leaves
from imagenet_ddp.runs.folder import is_locked
from imagenet_ddp.runs.plots import Table, column, read_metrics
from imagenet_ddp.system.files import read_mapping

MARKER = "imagenet_ddp.report"  # among the first bytes of each file that report writes, except CSV files
RUN_FILES = frozenset({"config.yaml", "metrics.csv", "summary.json"})  # a run folder holds at least one of these
EVALUATION = "evaluation"  # the subfolder with the evaluation of a run, which `report RUN` makes
OF_A_RUN = (EVALUATION, "csv")  # in a run folder, hold files of its names: logger=csv writes csv/metrics.csv
SUBFOLDERS = frozenset({"checkpoints", "logs"})  # subfolders of a run folder that are never runs themselves
OWN_COLUMNS = {"train/loss", "train/top1", "val/loss", "val/top1"}  # no other program's metrics.csv has one of these
OWN_GROUPS = {"data", "model", "optim", "trainer"}
UNKNOWN = object()  # value of an option that the files do not record
STATES = ("finished", "running", "interrupted")


@dataclass(frozen=True)
class Run:
    """The facts about a run. None means unknown. Accuracies are fractions."""

    folder: Path
    state: str  # one of STATES
    options: dict[str, Any] | None  # key path -> value, of the resolved config.yaml
    metrics: dict[str, np.ndarray]  # column -> (number of epochs,), NaN where a cell holds no number
    summary: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    best_top1: float | None = None  # highest val/top1
    best_epoch: int | None = None
    top5: float | None = None  # in the best epoch
    loss: float | None = None  # val/loss in the best epoch
    epochs: int | None = None  # number of completed epochs
    max_epochs: int | None = None  # None also if the number is not limited
    images_per_s: float | None = None  # median over the epochs after the first, which includes start-up
    train_s: float | None = None
    train_cpu_s: float | None = None  # over all processes, including data loader workers
    num_devices: int | None = None  # over all nodes
    num_nodes: int | None = None


class NotARunError(Exception):
    """Raised for a folder that looks like a run but is not one; the text is the reason."""


def find_runs(top: Path) -> list[Path]:
    """Return the run folders in `top`, including `top`, as absolute paths in natural order. Hidden folders, unreadable
    folders and links to folders are not entered."""
    folders = []
    for folder, subfolders, files in os.walk(top.resolve()):
        subfolders[:] = [name for name in subfolders if name not in SUBFOLDERS and not name.startswith(".")]
        if not RUN_FILES.isdisjoint(files):
            folders.append(Path(folder))
            subfolders[:] = [name for name in subfolders if name not in OF_A_RUN]
    return sorted(folders, key=natural_order)


def natural_order(path: Path | str) -> list[list[tuple[int, int, str]]]:
    """Return a sort key that puts 2 before 10."""
    return [
        [(0, int(bit), "") if bit.isdecimal() else (1, 0, bit) for bit in re.split(r"(\d+)", part) if bit]
        for part in Path(path).parts
    ]


def read_run(folder: Path) -> Run:
    """Return the run in a folder. Raises NotARunError if its files are not those of a training run."""
    problems: list[str] = []
    config = read_mapping(folder / "config.yaml", problems)
    summary = read_mapping(folder / "summary.json", problems if (folder / "summary.json").exists() else None)
    metrics = _read_metrics(folder / "metrics.csv", problems)
    epochs = metrics["epoch"]
    if (folder / "evaluation.json").is_file() and not len(epochs) and not summary:
        raise NotARunError("an evaluation")
    if not (
        len(OWN_GROUPS & config.keys()) > 1
        or not OWN_COLUMNS.isdisjoint(metrics)
        or {"best/val/top1", "val/top1"} & summary.keys()
    ):
        has_content = config or summary or len(metrics) > 1
        raise NotARunError("files of another program" if has_content else "; ".join(problems))
    options = {key: value for key, value in leaves(config).items() if value != {}} if config else {}
    num_devices, num_nodes = _world(options, summary)
    _resolve_auto(options, num_devices, num_nodes)
    max_epochs = _integer(options.get("trainer.max_epochs"))
    return Run(
        folder, _state(folder, summary), options or None, metrics, summary, tuple(problems), *_best(metrics, summary),
        epochs=_num_epochs(epochs, summary),
        max_epochs=max_epochs if max_epochs is not None and max_epochs >= 0 else None,
        images_per_s=_images_per_s(metrics, summary),
        train_s=as_number(summary.get("train_s")) or _last(metrics, "train_s"),
        train_cpu_s=as_number(summary.get("train_cpu_s")),
        num_devices=num_devices, num_nodes=num_nodes,
    )  # fmt: skip


def _read_metrics(path: Path, problems: list[str]) -> dict[str, np.ndarray]:
    """Return column -> float64 (number of epochs,), NaN for a cell without a number; "epoch" is always present."""
    try:
        columns = read_metrics(path)
    except (OSError, ValueError, csv.Error) as error:
        reason = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else "is not valid CSV"
        problems.append(f"metrics.csv {'is missing' if isinstance(error, FileNotFoundError) else reason}")
        return {"epoch": np.empty(0)}
    for name, values in columns.items():
        if name.endswith(("/top1", "/top5")):
            values[(values < 0) | (values > 1)] = np.nan
    is_valid = (columns["epoch"] >= 0) & (columns["epoch"] < 1e6)
    return {name: values[is_valid] for name, values in columns.items()}


def as_number(value: Any) -> float | None:
    """Return the value as a float; None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if np.isfinite(value) else None


def _integer(value: Any) -> int | None:
    number = as_number(value)
    return int(number) if number is not None and number == int(number) else None


def _state(folder: Path, summary: Mapping[str, Any]) -> str:
    """Return the run's state. A resumed run first removes its summary.json, so "finished" is never stale."""
    if summary.get("finished") is True:
        return "finished"
    return "running" if is_locked(folder) else "interrupted"


def _num_epochs(epochs: np.ndarray, summary: Mapping[str, Any]) -> int:
    """Return the number of whole epochs; until the run ends, an epoch that was stopped counts, too. epochs: those with
    a row in metrics.csv."""
    ended = _integer(summary.get("epochs"))
    return ended if ended is not None else int(epochs.max()) if len(epochs) else 0


def _best(metrics: Table, summary: Mapping[str, Any]) -> tuple[float | None, int | None, float | None, float | None]:
    """Return (best top-1, its epoch, top-5 and loss of that epoch). Top-5 and loss are None if the best validation was
    within an epoch, because it has no row in metrics.csv then."""
    top1 = metrics.get("val/top1", np.empty(0))
    stored = [as_number(summary.get("best/val/top1")), _last(metrics, "best/val/top1")]
    stored_best = max((value for value in stored if value is not None), default=None)
    best = float(np.nanmax(top1)) if np.isfinite(top1).any() else None
    if best is None or (stored_best is not None and stored_best > best):
        return stored_best, _integer(summary.get("best_epoch")), None, None
    row, within = int(np.nanargmax(top1)), _integer(summary.get("best_epoch"))
    if stored_best == best and within is not None and within < metrics["epoch"][row]:  # equal, and earlier
        return best, within, None, None
    top5, loss = (
        as_number(float(metrics[name][row])) if name in metrics else None for name in ("val/top5", "val/loss")
    )
    return best, int(metrics["epoch"][row]), top5, loss


def _last(metrics: Table, name: str) -> float | None:
    _, values = column(metrics, name)
    return float(values[-1]) if len(values) else None


def _images_per_s(metrics: Table, summary: Mapping[str, Any]) -> float | None:
    _, values = column(metrics, "images_per_s")
    if len(values := values[values > 0]):
        return float(np.median(values[1:] if len(values) > 1 else values))
    return as_number(summary.get("images_per_s"))


def _world(options: Mapping[str, Any], summary: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return (number of devices on all nodes, number of nodes), as a finished run recorded them, else as configured."""
    devices = options.get("trainer.devices")
    per_node = len(devices) if isinstance(devices, list) else _integer(devices)
    num_nodes = _integer(summary.get("num_nodes")) or _integer(options.get("trainer.num_nodes"))
    num_devices = _integer(summary.get("num_devices")) or _integer(summary.get("world_size"))
    if num_devices is None and num_nodes and per_node and per_node > 0:
        num_devices = per_node * num_nodes
    return num_devices, num_nodes


def _resolve_auto(options: dict[str, Any], num_devices: int | None, num_nodes: int | None) -> None:
    """Replace auto by the value that was used, so that one device by choice and one by default do not differ."""
    if options.get("trainer.num_nodes") == "auto":
        options["trainer.num_nodes"] = num_nodes or UNKNOWN
    if options.get("trainer.devices") in ("auto", -1):
        options["trainer.devices"] = num_devices // num_nodes if num_devices and num_nodes else UNKNOWN
