"""One run as its folder tells it. What is broken, half-written or missing is left out and named, never an error."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.config.schema import leaves
from imagenet_ddp.report.contents import read_config, read_metrics, read_summary
from imagenet_ddp.runs.folder import is_locked, last_checkpoint

OWN_COLUMNS = {"train/loss", "train/top1", "val/loss", "val/top1"}  # no other program's metrics.csv has one of these
OWN_GROUPS = {"data", "model", "optim", "trainer"}
UNKNOWN = object()  # an option that the files do not tell
STATES = ("finished", "running", "stopped", "broken off")


@dataclass(frozen=True)
class Run:
    """None: the files do not tell. Accuracies are fractions."""

    folder: Path
    state: str  # one of STATES
    options: dict[str, Any] | None  # key path -> value, of the resolved config.yaml
    metrics: dict[str, np.ndarray]  # column -> (number of epochs,), NaN where a cell holds no number
    summary: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    best_top1: float | None = None  # highest val/top1
    best_epoch: int | None = None
    top5: float | None = None  # of that epoch, as is loss
    loss: float | None = None
    epochs: int | None = None  # done
    max_epochs: int | None = None  # asked for; None also where there is no end
    images_per_s: float | None = None  # median over the epochs after the first, which bears the start-up
    train_s: float | None = None
    num_devices: int | None = None  # over all nodes
    num_nodes: int | None = None


class NoRun(Exception):
    """Why a folder that looked like a run is none."""


def read(folder: Path) -> Run:
    """Raises NoRun."""
    problems: list[str] = []
    config, summary = read_config(folder, problems), read_summary(folder, problems)
    metrics = read_metrics(folder, problems)
    is_ours = (
        len(OWN_GROUPS & config.keys()) > 1
        or not OWN_COLUMNS.isdisjoint(metrics)
        or {"best/val/top1", "val/top1"} & summary.keys()
    )
    if (folder / "evaluation.json").is_file() and not len(metrics["epoch"]) and not summary:
        raise NoRun("an evaluation")
    if not is_ours:
        raise NoRun("files of another program" if config or summary or len(metrics) > 1 else "; ".join(problems))
    options = {key: value for key, value in leaves(config).items() if value != {}} if config else None
    best = _best(metrics, summary)
    epochs = metrics["epoch"]
    done = int(epochs.max()) if len(epochs) else _whole(summary.get("epochs"))
    max_epochs = _whole((options or {}).get("trainer.max_epochs"))
    num_devices, num_nodes = _world(options or {}, summary)
    _fill_auto(options or {}, num_devices, num_nodes)
    return Run(
        folder, _state(folder, summary), options, metrics, summary, tuple(problems), *best,
        epochs=done if done is not None else 0,
        max_epochs=max_epochs if max_epochs is not None and max_epochs >= 0 else None,
        images_per_s=_images_per_s(metrics, summary),
        train_s=number(summary.get("train_s")) or _last(metrics, "train_s"),
        num_devices=num_devices, num_nodes=num_nodes,
    )  # fmt: skip


def column(run: Run, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Epochs and values of the cells that hold a number."""
    epochs = run.metrics["epoch"]
    values = run.metrics.get(name, np.full(len(epochs), np.nan))
    there = np.isfinite(values)
    return epochs[there], values[there]


def number(value: Any) -> float | None:
    """None for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if np.isfinite(value) else None


def _whole(value: Any) -> int | None:
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


# ---- what they tell ----------------------------------------------------------------------------------------------


def _state(folder: Path, summary: Mapping[str, Any]) -> str:
    """A run that goes on after its end takes its summary.json away first."""
    if summary.get("finished") is True:
        return "finished"
    if is_locked(folder):
        return "running"
    try:
        with (folder / "logs" / "rank0.log").open("rb") as file:
            file.seek(max(file.seek(0, 2) - 4096, 0))
            last = file.read().decode(errors="replace").splitlines()[-3:]
    except OSError:
        last = []
    if any("Stopped by SIG" in line for line in last) and last_checkpoint(folder).is_file():
        return "stopped"  # again, before its next step
    return "stopped" if any("Stopped and saved after step" in line for line in last) else "broken off"


def _best(
    metrics: Mapping[str, np.ndarray], summary: Mapping[str, Any]
) -> tuple[float | None, int | None, float | None, float | None]:
    """(top-1, its epoch, top-5 and loss of that epoch). A validation within an epoch has no row of its own."""
    top1 = metrics.get("val/top1", np.empty(0))
    claims = [number(summary.get("best/val/top1")), _last(metrics, "best/val/top1")]
    claimed = max((claim for claim in claims if claim is not None), default=None)
    if not np.isfinite(top1).any():
        return claimed, _whole(summary.get("best_epoch")), None, None
    row = int(np.nanargmax(top1))
    best = float(top1[row])
    if claimed is not None and claimed > best:
        return claimed, _whole(summary.get("best_epoch")), None, None
    there = [float(metrics[name][row]) if name in metrics else None for name in ("val/top5", "val/loss")]
    top5, loss = (number(value) for value in there)
    return best, int(metrics["epoch"][row]), top5, loss


def _last(metrics: Mapping[str, np.ndarray], name: str) -> float | None:
    values = metrics.get(name, np.empty(0))
    values = values[np.isfinite(values)]
    return float(values[-1]) if len(values) else None


def _images_per_s(metrics: Mapping[str, np.ndarray], summary: Mapping[str, Any]) -> float | None:
    values = metrics.get("images_per_s", np.empty(0))
    values = values[np.isfinite(values) & (values > 0)]
    if len(values):
        return float(np.median(values[1:] if len(values) > 1 else values))
    return number(summary.get("images_per_s"))


def _world(options: Mapping[str, Any], summary: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """(devices of all nodes, nodes): counted by a run that finished, else as typed."""
    num_nodes, devices = options.get("trainer.num_nodes"), options.get("trainer.devices")
    devices = len(devices) if isinstance(devices, list) else devices
    nodes = _whole(summary.get("num_nodes")) or _whole(num_nodes)
    counted = _whole(summary.get("num_devices")) or _whole(summary.get("world_size"))
    if counted is None and nodes and (each := _whole(devices)) and each > 0:
        counted = each * nodes
    return counted, nodes


def _fill_auto(options: dict[str, Any], num_devices: int | None, num_nodes: int | None) -> None:
    """What auto came to: one device chosen and one typed are no difference."""
    if options.get("trainer.num_nodes") == "auto":
        options["trainer.num_nodes"] = num_nodes or UNKNOWN
    if options.get("trainer.devices") in ("auto", -1):
        options["trainer.devices"] = num_devices // num_nodes if num_devices and num_nodes else UNKNOWN
