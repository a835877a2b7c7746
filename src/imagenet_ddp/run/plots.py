"""metrics.csv drawn as curves.png: loss, top-1, top-k and learning rate over epochs."""

import csv
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAIN, VAL = (
    "#D55E00",
    "#0072B2",
)  # vermilion and blue of Okabe and Ito's palette: apart for every kind of colour vision
RATE = "#009E73"
DASHES = (0, (4, 2))
INK, SOFT, GRID = "#1A1A1A", "#5F6368", "#E4E6EA"
DOTS_UP_TO = 24  # epochs: below it every measured point shows as a dot
DPI = 150


def draw_curves(metrics_csv: Path, out: Path, title: str, top_k: int = 5) -> None:
    """Write a PNG of 1650 x 1140 pixels, replacing `out` in one step. Missing columns and cells leave gaps.

    metrics_csv: one row per finished epoch, `epoch` from 1, accuracies as fractions.
    top_k: what the columns */top5 hold; less than 5 where there are fewer than 5 classes.
    """
    figure = curves(read_metrics(metrics_csv), title, top_k)
    partial = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(partial, format="png", dpi=DPI, facecolor="white")
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


def curves(table: dict[str, np.ndarray], title: str, top_k: int = 5) -> "Figure":
    """The drawing itself, of what `read_metrics` returns."""
    # Imported here: it takes about half a second, which only this picture needs. Without pyplot: no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(11, 7.6), dpi=DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0.006, 0.006, 0.988, 0.878), w_pad=0.1, h_pad=0.12)

    loss, top1, topk, rate = figure.subplots(2, 2).flat
    last = float(table["epoch"].max(initial=1))
    _pair(loss, table, "loss", "Loss", last)
    _pair(top1, table, "top1", "Top-1 accuracy", last)
    _pair(topk, table, "top5", f"Top-{top_k} accuracy", last)
    _learning_rate(rate, table, last)
    for axes in (topk, rate):
        axes.set_xlabel("epoch", color=SOFT, fontsize=10)

    heading = figure.text(0.016, 0.968, " ".join(title.split()), parse_math=False)
    heading.set(fontsize=16, fontweight="bold", color=INK, va="center")
    while heading.get_window_extent().x1 > 0.984 * figure.bbox.width:
        heading.set_text(heading.get_text()[:-3] + "…")
    figure.text(0.016, 0.922, _summary(table), fontsize=11, color=SOFT, va="center")
    keys = [
        Line2D([], [], color=TRAIN, linestyle=DASHES, linewidth=1.8, label="training"),
        Line2D([], [], color=VAL, linewidth=2.2, label="validation"),
        Line2D([], [], color=VAL, linestyle="none", label="best validation", **_ring()),
    ]
    figure.legend(
        handles=keys, loc="center right", bbox_to_anchor=(0.992, 0.922), ncols=3, frameon=False, fontsize=10.5,
        labelcolor=INK, handlelength=2.4, columnspacing=1.5, handletextpad=0.6, borderpad=0,
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
    text = f"{num_epochs} epoch{'s' if num_epochs != 1 else ''}"
    epochs, values = _column(table, "val/top1", 100)
    if len(values):
        text += f"   ·   best validation top-1 {values.max():.2f} % in epoch {epochs[values.argmax()]:.0f}"
    return text


def _stroke(width: float, last: float) -> dict[str, Any]:
    """Dots while they can be told apart, thinner lines where hundreds of epochs crowd."""
    return {"linewidth": width if last <= 120 else 0.7 * width, "marker": "o", "markersize": 4.5 * (last <= DOTS_UP_TO)}


def _ring() -> dict[str, Any]:
    return {"marker": "o", "markersize": 9, "markerfacecolor": "white", "markeredgecolor": VAL, "markeredgewidth": 2.2}


def _pair(axes: "Axes", table: dict[str, np.ndarray], name: str, title: str, last: float) -> None:
    """Training and validation of one metric, with the best validation ringed and named above the panel."""
    percent = name != "loss"
    scale = 100 if percent else 1
    epochs, values = _column(table, f"train/{name}", scale)
    axes.plot(epochs, values, color=TRAIN, linestyle=DASHES, zorder=3, **_stroke(1.6, last))
    val_epochs, val_values = _column(table, f"val/{name}", scale)
    axes.plot(val_epochs, val_values, color=VAL, zorder=4, **_stroke(2.1, last))
    best = ""
    if len(val_values):
        place = val_values.argmax() if percent else val_values.argmin()
        axes.plot(val_epochs[place], val_values[place], linestyle="none", zorder=5, clip_on=False, **_ring())
        value = f"best {val_values[place]:.2f} %" if percent else f"lowest {val_values[place]:.3g}"
        best = f"{value} in epoch {val_epochs[place]:.0f}"
    _dress(axes, title, best, VAL, last)
    both = np.concatenate([values, val_values])
    if not len(both):
        _nothing(axes)
    elif percent:
        _percent(axes, both, last)
    elif both.min() > 0 and both.max() > 50 * np.median(both):  # it diverged for a while; the rest stays readable
        axes.set_yscale("log")
    elif last <= 1 and both.min() > 0:
        axes.set_ylim(0, 1.15 * both.max())


def _percent(axes: "Axes", values: np.ndarray, last: float) -> None:
    from matplotlib.ticker import MaxNLocator

    low, high = (values.min(), values.max()) if last > 1 else (0, 100)
    room = max(0.08 * (high - low), 1.0)
    axes.set_ylim(max(low - room, -2), min(high + room, 102))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %" if 0 <= value <= 100 else "")


def _learning_rate(axes: "Axes", table: dict[str, np.ndarray], last: float) -> None:
    from matplotlib.ticker import LogLocator

    epochs, values = _column(table, "lr")
    axes.plot(epochs, values, color=RATE, zorder=3, **_stroke(2.1, last))
    note = ""
    if len(values):
        note = (
            f"{values[0]:.3g}" if values.min() == values.max() else f"highest {values.max():.3g}, last {values[-1]:.3g}"
        )
    _dress(axes, "Learning rate", note, RATE, last)
    if not len(values):
        return _nothing(axes)
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


def _nothing(axes: "Axes") -> None:
    axes.set_yticks([])
    axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", va="center", color=SOFT, fontsize=11)


def _dress(axes: "Axes", title: str, note: str, color: str, last: float) -> None:
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=9)
    axes.set_title(note, loc="right", fontsize=10.5, color=color, pad=9)
    axes.set_xlim((0.5, 1.5) if last <= 1 else (1 - 0.02 * (last - 1), last + 0.02 * (last - 1)))
    axes.set_xticks(_epoch_ticks(last))
    axes.grid(True, color=GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=10, labelcolor=SOFT, pad=6)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color("#B8BCC2")


def _epoch_ticks(last: float) -> list[int]:
    """The first, the last, and round numbers between that keep their distance from both."""
    end = max(int(last), 1)
    step = next(step * 10**power for power in range(12) for step in (1, 2, 5) if end <= 9 * step * 10**power)
    return sorted({1, *(tick for tick in range(step, end, step) if 1 + step / 2 <= tick <= end - step / 2), end})
