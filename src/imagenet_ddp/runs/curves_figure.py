"""Draw metrics.csv as curves.png: loss, top-1, top-k and learning rate over epochs."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from imagenet_ddp.runs import plot_style
from imagenet_ddp.system.atomic_write import atomic_write
from imagenet_ddp.system.text import count_noun, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = dict[str, np.ndarray]


def draw_curves(metrics_csv: Path, out: Path, title: str) -> None:
    """Write the curves as a PNG, replacing `out` atomically. Missing columns and cells leave gaps.

    metrics_csv: one row per finished epoch, with `epoch` counted from 1 and accuracies as fractions; a row of epoch 0
    is a validation before the first step. Top-5 is drawn unless it is always 100 %.
    """
    atomic_write(out, plot_style.png(curves(read_metrics(metrics_csv), title)))


def curves(table: Table, title: str) -> "Figure":
    """Return the figure. table: the result of `read_metrics`."""
    epochs, top1 = column(table, "val/top1")
    best = f", best validation top-1 {percent(top1.max())} in epoch {epochs[top1.argmax()]:.0f}" if len(top1) else ""
    panels = {"loss": "Loss", "top1": "Top-1 accuracy", "top5": "Top-5 accuracy", "lr": "Learning rate"}
    height, rows, columns = 7.6, 2, 2
    if not has_top5(table):
        del panels["top5"]
        height, rows, columns = 4.2, 1, 3
    figure = plot_style.new_figure(11, height, title, count_noun(int(np.count_nonzero(table["epoch"])), "epoch") + best)
    for axes, (name, heading) in zip(figure.subplots(rows, columns).flat, panels.items(), strict=True):
        lines = {"": name} if name == "lr" else {"training": f"train/{name}", "validation": f"val/{name}"}
        for label, key in lines.items():
            style, color = ("--", plot_style.PALETTE[1]) if label == "training" else ("-", plot_style.PALETTE[0])
            axes.plot(*column(table, key), style, color=color, marker="o", markersize=3, label=label)
        values = [column(table, key)[1] for key in lines.values()]
        plot_style.style_axes(axes, heading, values, percent=name.startswith("top"))
        if name == "loss":
            axes.legend(frameon=False)
    return figure


def has_top5(table: Table) -> bool:
    """Return whether top-5 was below 100 % in any epoch. With at most 5 classes, it never is."""
    return any((column(table, name)[1] < 1).any() for name in ("train/top5", "val/top5"))


def read_metrics(metrics_csv: Path) -> Table:
    """Return column name -> float64 (number of epochs,), NaN for a cell that is empty, not a number or not finite."""
    with metrics_csv.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        names = reader.fieldnames or []
        rows = list(reader)
    table = {name: np.array([_number(row[name]) for row in rows], dtype=float) for name in names}
    epochs = table.setdefault("epoch", np.arange(1.0, len(rows) + 1))
    return {name: values[np.isfinite(epochs)] for name, values in table.items()}


def _number(cell: str | None) -> float:
    try:
        value = float(cell or "nan")
    except ValueError:
        return float("nan")
    return value if np.isfinite(value) else float("nan")


def column(table: Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (epochs, values) of the cells that hold a number, so that lines connect across epochs without
    validation."""
    values = table.get(name, np.full(len(table["epoch"]), np.nan))
    there = np.isfinite(values)
    return table["epoch"][there], values[there]
