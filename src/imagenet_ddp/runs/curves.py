"""metrics.csv drawn as curves.png: loss, top-1, top-k and learning rate over epochs."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_ddp.runs import plot_style
from imagenet_ddp.system.text import count_noun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAIN, VAL, RATE = plot_style.VERMILION, plot_style.BLUE, plot_style.GREEN


def draw_curves(metrics_csv: Path, out: Path, title: str, top_k: int = 5) -> None:
    """Write a PNG of 1650 x 1140 pixels, replacing `out` in one step. Missing columns and cells leave gaps.

    metrics_csv: one row per finished epoch, `epoch` from 1, accuracies as fractions.
    top_k: what the columns */top5 hold; less than 5 where there are fewer than 5 classes.
    """
    plot_style.save(curves(read_metrics(metrics_csv), title, top_k), out)


def curves(table: dict[str, np.ndarray], title: str, top_k: int = 5) -> "Figure":
    """The drawing itself, of what `read_metrics` returns."""
    from matplotlib.lines import Line2D

    figure = plot_style.blank(11, 7.6, head=0.88)
    loss, top1, topk, rate = figure.subplots(2, 2).flat
    last = float(table["epoch"].max(initial=1))
    _pair(loss, table, "loss", "Loss", last)
    _pair(top1, table, "top1", "Top-1 accuracy", last)
    _pair(topk, table, "top5", f"Top-{top_k} accuracy", last)
    _learning_rate(rate, table, last)
    for axes in (topk, rate):
        axes.set_xlabel("epoch", color=plot_style.SOFT, fontsize=10)

    plot_style.headline(figure, title, _summary(table))
    keys = [
        Line2D([], [], color=TRAIN, linestyle=plot_style.DASHES, linewidth=1.8, label="training"),
        Line2D([], [], color=VAL, linewidth=2.2, label="validation"),
        Line2D([], [], color=VAL, linestyle="none", label="best validation", **_ring()),
    ]
    figure.legend(
        handles=keys, loc="center right", bbox_to_anchor=(0.992, 0.922), ncols=3, frameon=False, fontsize=10.5,
        labelcolor=plot_style.INK, handlelength=2.4, columnspacing=1.5, handletextpad=0.6, borderpad=0,
    )  # fmt: skip
    return figure


def read_metrics(metrics_csv: Path) -> dict[str, np.ndarray]:
    """Column name -> float64 (number of epochs,), NaN where a cell is empty, no number or not finite."""
    with metrics_csv.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        names = reader.fieldnames or []
        rows = list(reader)
    table = {name: np.array([_number(row[name]) for row in rows], dtype=float) for name in names}
    epochs = table.setdefault("epoch", np.arange(1.0, len(rows) + 1))
    return {name: column[np.isfinite(epochs)] for name, column in table.items()}


def _number(cell: str | None) -> float:
    try:
        value = float(cell or "nan")
    except ValueError:
        return float("nan")
    return value if np.isfinite(value) else float("nan")


def _column(table: dict[str, np.ndarray], name: str, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Epochs and values of the cells that hold a number: a line runs on over epochs without validation."""
    values = table.get(name, np.full(len(table["epoch"]), np.nan)) * scale
    there = np.isfinite(values)
    return table["epoch"][there], values[there]


def _summary(table: dict[str, np.ndarray]) -> str:
    num_epochs = len(table["epoch"])
    text = count_noun(num_epochs, "epoch")
    epochs, values = _column(table, "val/top1", 100)
    if len(values):
        text += f"   ·   best validation top-1 {values.max():.2f} % in epoch {epochs[values.argmax()]:.0f}"
    return text


def _ring() -> dict[str, Any]:
    return {"marker": "o", "markersize": 9, "markerfacecolor": "white", "markeredgecolor": VAL, "markeredgewidth": 2.2}


def _pair(axes: "Axes", table: dict[str, np.ndarray], name: str, title: str, last: float) -> None:
    """Training and validation of one metric, with the best validation ringed and named above the panel."""
    percent = name != "loss"
    scale = 100 if percent else 1
    epochs, values = _column(table, f"train/{name}", scale)
    axes.plot(epochs, values, color=TRAIN, linestyle=plot_style.DASHES, zorder=3, **plot_style.stroke(1.6, last))
    val_epochs, val_values = _column(table, f"val/{name}", scale)
    axes.plot(val_epochs, val_values, color=VAL, zorder=4, **plot_style.stroke(2.1, last))
    best = ""
    if len(val_values):
        place = val_values.argmax() if percent else val_values.argmin()
        axes.plot(val_epochs[place], val_values[place], linestyle="none", zorder=5, clip_on=False, **_ring())
        value = f"best {val_values[place]:.2f} %" if percent else f"lowest {val_values[place]:.3g}"
        best = f"{value} in epoch {val_epochs[place]:.0f}"
    plot_style.style_axes(axes, title, best, VAL, last)
    both = np.concatenate([values, val_values])
    if not len(both):
        plot_style.nothing(axes)
    elif percent:
        plot_style.percent_scale(axes, both, last)
    elif both.min() > 0 and both.max() > 50 * np.median(both):  # it diverged for a while; the rest stays readable
        axes.set_yscale("log")
    elif last <= 1 and both.min() > 0:
        axes.set_ylim(0, 1.15 * both.max())


def _learning_rate(axes: "Axes", table: dict[str, np.ndarray], last: float) -> None:
    from matplotlib.ticker import LogLocator

    epochs, values = _column(table, "lr")
    axes.plot(epochs, values, color=RATE, zorder=3, **plot_style.stroke(2.1, last))
    note = ""
    if len(values):
        note = (
            f"{values[0]:.3g}" if values.min() == values.max() else f"highest {values.max():.3g}, last {values[-1]:.3g}"
        )
    plot_style.style_axes(axes, "Learning rate", note, RATE, last)
    if not len(values):
        return plot_style.nothing(axes)
    plateaus = len(np.unique(values)) <= max(8, len(values) // 10)
    if plateaus and values.min() > 0 and values.max() >= 50 * values.min():  # drops by tens: equal steps in a log scale
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(base=10, numticks=8))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()
    else:
        top = values.max() or 1.0
        axes.set_ylim(-0.03 * top, 1.08 * top)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.6g}")
