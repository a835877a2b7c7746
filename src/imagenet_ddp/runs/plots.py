"""Draw the curves of a run. matplotlib is imported only to draw."""

import csv
import io
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_ddp.config.figures import FIGURES, FIGURES_OF, LOSS, TOP5, best_metric, figure_of
from imagenet_ddp.system.files import UnusualFileError, atomic_write, read_small
from imagenet_ddp.system.text import count_noun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, whose colours can be told apart with every kind of colour vision, without its yellow, which
# is too light for lines.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000")


_COLORS = {"light": ("#FFFFFF", "#1C2127", "#E4E6EA"), "dark": ("#14171B", "#E4E7EB", "#2E343B")}  # of the pages, too
LINES = {"light": PALETTE[:2], "dark": ("#56B4E9", "#F0904A")}  # of validation and training
LEAST_SPAN = 0.1  # of an axis: 10 points, or a tenth of the largest loss, so that a small change looks small


@contextmanager
def colors(scheme: str) -> Iterator[None]:
    """Give the figures that are made meanwhile the colours of a scheme, light or dark, except the lines (LINES)."""
    from matplotlib import rc_context

    ground, ink, grid = _COLORS[scheme]
    of_ink = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    of_ground = ("figure.facecolor", "axes.facecolor")
    values: Any = dict.fromkeys(of_ink, ink) | dict.fromkeys(of_ground, ground) | {"grid.color": grid}
    with rc_context(values):
        yield


def new_figure(width: float, height: float, title: str, subtitle: str) -> "Figure":
    """Return an empty figure, without pyplot and its global state. width, height: in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    heading = f"{' '.join(title.split())[:90]}\n{subtitle}"
    figure.suptitle(heading, x=0.02, ha="left", fontsize=13).set_parse_math(False)
    return figure


def png(figure: "Figure", **texts: str) -> bytes:
    """Return the figure as a PNG. texts: text chunks of the file, by keyword."""
    stream = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):  # characters that the font lacks are drawn as boxes
        figure.savefig(stream, format="png", metadata=texts)
    return stream.getvalue()


def style_axes(axes: "Axes", title: str, values: Iterable[np.ndarray], *, percent: bool) -> None:
    """Set title, ticks and scale. values: the y values of each line; if they diverge, the y axis is logarithmic.
    percent: label the y axis in percent, and end it at 100 %."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    every = np.concatenate([*values, np.empty(0)])
    axes.set_title(title, loc="left")
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(True)
    axes.spines[["top", "right"]].set_visible(False)
    if not percent and len(every) and every.min() > 0 and every.max() > 50 * np.median(every):
        axes.set_yscale("log")
        return
    low, high = axes.get_ylim()
    missing = LEAST_SPAN * (1 if percent else np.abs(every).max(initial=0)) - (high - low)
    if len(every) and missing > 0:
        low, high = low - missing / 2, high + missing / 2
        low -= max(high - 1, 0) if percent else 0
    axes.set_ylim(low, min(high, 1.0) if percent else high)
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        for line in axes.get_lines():
            if np.size(line.get_xdata()):  # constrained layout makes room for an empty line that is not clipped
                line.set_clip_on(False)  # so that markers at 100 % are whole


Table = dict[str, np.ndarray]
MOST_COLUMNS, MOST_ROWS = 1_000, 1_000_000  # of metrics.csv
LARGEST = 1e100  # number that can be drawn


def draw_curves(metrics_csv: Path, out: Path, title: str) -> None:
    """Write the curves as a PNG, replacing `out` atomically. Missing columns and cells leave gaps.

    metrics_csv: one row per finished epoch, with `epoch` counted from 1 and accuracies as fractions; a row of epoch 0
    is a validation before the first step, one of epoch 0.25 a validation within the first epoch.
    """
    atomic_write(out, png(curves(read_metrics(metrics_csv), title)))


def curves(table: Table, title: str, *, scheme: str = "light", is_narrow: bool = False) -> "Figure":
    """Return the figure. table: the result of `read_metrics`. scheme: light or dark. is_narrow: for a phone, one panel
    below the other."""
    name = best_metric(table)
    score, (_, scores) = figure_of(name), column(table, name)
    words, (_, so_far) = "", column(table, f"best/{name}")
    if len(scores):
        best = so_far[-1] if len(so_far) else scores.max() if score.mode == "max" else scores.min()
        at = best_epoch(table, name, best)
        when = "" if at is None else f" in epoch {at:.4g}" if at else " at the start"
        words = f", best validation {score.title} {score.text(best)}{when}"
    others = [each for each in FIGURES.values() if each not in (LOSS, score) and f"val/{each.name}" in table]
    shown = {each.name: each.heading for each in (LOSS, score, *others, *FIGURES_OF["one"])}
    top5 = np.concatenate([column(table, f"{split}/{TOP5.name}")[1] for split in ("train", "val")])
    if (top5 == 1).all():  # there are five classes or fewer, or no validation
        del shown[TOP5.name]
    panels = dict(list(shown.items())[:3]) | {"lr": "Learning rate"}
    rows, columns = (len(panels), 1) if is_narrow else (2, 2) if len(panels) == 4 else (1, 3)
    is_whole = (table["epoch"] > 0) & (table["epoch"] % 1 == 0)
    subtitle = count_noun(int(np.count_nonzero(is_whole)), "epoch") + ("" if is_narrow else words)
    with colors(scheme):
        figure = new_figure(4.6 if is_narrow else 11, 0.6 + (2.6 if is_narrow else 3.5) * rows, title, subtitle)
        for axes, (name, heading) in zip(np.ravel(figure.subplots(rows, columns)), panels.items(), strict=True):
            lines = {"": name} if name == "lr" else {"training": f"train/{name}", "validation": f"val/{name}"}
            for label, key in lines.items():
                style, color = ("--", LINES[scheme][1]) if label == "training" else ("-", LINES[scheme][0])
                axes.plot(*column(table, key), style, color=color, marker="o", markersize=3, label=label)
            values = [column(table, key)[1] for key in lines.values()]
            style_axes(axes, heading, values, percent=figure_of(name).is_share)
            if name == "loss":
                axes.legend(frameon=False)
    return figure


def best_epoch(table: Table, name: str, best: float) -> float | None:
    """Return the epoch of the weights in best.ckpt: of those with the best score, that with the lowest loss. None if
    no row has this score."""
    epochs, values = column(table, name)
    losses = dict(zip(*column(table, f"val/{LOSS.name}"), strict=True))
    return min(epochs[np.isclose(values, best)], key=lambda epoch: losses.get(epoch, np.inf), default=None)


def read_metrics(metrics_csv: Path) -> Table:
    """Return column name -> float64 (number of epochs,), NaN for a cell that is empty, not a number or too large.
    Raises OSError, ValueError or csv.Error for a file that no run has written."""
    text = read_small(metrics_csv)
    if text.count(",", 0, text.find("\n")) > MOST_COLUMNS or text.count("\n") > MOST_ROWS:
        raise UnusualFileError(f"has more than {MOST_COLUMNS:,} columns or {MOST_ROWS:,} rows")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    names, rows = reader.fieldnames or [], list(reader)
    table = {name: np.array([_number(row[name]) for row in rows], dtype=float) for name in names}
    epochs = table.setdefault("epoch", np.arange(1.0, len(rows) + 1))
    return {name: values[np.isfinite(epochs)] for name, values in table.items()}


def _number(cell: str | None) -> float:
    try:
        value = float(cell or "nan")
    except ValueError:
        return float("nan")
    return value if abs(value) < LARGEST else float("nan")


def column(table: Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (epochs, values) of the cells that hold a number, so that lines connect across epochs without
    validation."""
    values = table.get(name, np.full(len(table["epoch"]), np.nan))
    there = np.isfinite(values)
    return table["epoch"][there], values[there]
