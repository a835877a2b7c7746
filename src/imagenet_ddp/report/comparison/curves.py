"""Draw the curves of several runs over each other. matplotlib is imported only to draw."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_ddp.report.run import Run, metric
from imagenet_ddp.runs import plot_style
from imagenet_ddp.system.table import shorten_middle
from imagenet_ddp.system.text import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = (plot_style.BLUE, plot_style.VERMILION, plot_style.GREEN, plot_style.ORANGE, plot_style.PURPLE, plot_style.SKY,
          plot_style.BLACK)  # fmt: skip
DASHES: tuple[Any, ...] = ("solid", (0, (4, 2)), (0, (1, 1.5)))  # the next one where the colours start again
NUM_COLORED = 10  # runs with a colour of their own; more cannot be told apart
GREY = "#C4C8CE"
HALF_WIDTH = 52  # characters of a legend entry that fit into half of the figure


def draw_curves(runs: Sequence[Run], labels: Sequence[str], title: str) -> "Figure":
    """Draw validation top-1 and training loss. runs: best first; the first NUM_COLORED in colour, the rest in grey."""
    colored = runs[:NUM_COLORED]
    entries = [_entry(run, label) for run, label in zip(colored, labels, strict=False)]
    entries += [f"{len(runs) - NUM_COLORED} more"] if len(runs) > NUM_COLORED else []
    num_columns = 2 if len(entries) > 1 and max(map(len, entries)) <= HALF_WIDTH else 1
    figure = plot_style.new_figure(11, 5.1 + 0.24 * -(-len(entries) // num_columns), head=0.88)
    last = max((float(run.metrics["epoch"].max(initial=1)) for run in runs), default=1.0)
    top1, loss = figure.subplots(1, 2)
    _panel(top1, runs, "val/top1", "Validation top-1", last)
    _panel(loss, runs, "train/loss", "Training loss", last)
    _add_legend(figure, entries, [_style(index, last) for index in range(len(colored))], num_columns)
    unfinished = sum(run.state != "finished" for run in runs)
    subtitle = f"{len(runs)} runs, the best first" if len(runs) > 1 else "1 run"
    plot_style.add_heading(
        figure, title, subtitle + (f"   ·   {unfinished} not finished (open end of the line)" if unfinished else "")
    )
    return figure


def _panel(axes: "Axes", runs: Sequence[Run], name: str, heading: str, last: float) -> None:
    scale = 100 if name.endswith("top1") else 1
    lines = [(epochs, values * scale) for epochs, values in (metric(run, name) for run in runs)]
    for epochs, values in lines[NUM_COLORED:]:
        marker = "o" if len(epochs) == 1 else None  # a line of one point is invisible
        axes.plot(epochs, values, color=GREY, linewidth=1.0, marker=marker, markersize=3.5, zorder=2)
    for index in reversed(range(min(len(runs), NUM_COLORED))):  # the best on top
        (epochs, values), order = lines[index], 3 + (NUM_COLORED - index) / 20
        axes.plot(epochs, values, zorder=order, **_style(index, last))
        if runs[index].state != "finished":
            axes.plot(epochs[-1:], values[-1:], zorder=order, color=COLORS[index % len(COLORS)], linestyle="none",
                      marker="o", markersize=8, markerfacecolor="white", markeredgewidth=2.0)  # fmt: skip
    plot_style.style_axes(axes, heading, "", plot_style.SOFT, last)
    axes.set_xlabel("epoch", color=plot_style.SOFT, fontsize=10)
    lines = [values for _, values in lines if len(values)]
    if not lines:
        plot_style.mark_empty(axes)
    elif scale == 100:
        plot_style.percent_scale(axes, np.concatenate(lines), last)
    else:
        _set_loss_limits(axes, lines, last)


def _style(index: int, last: float) -> dict[str, Any]:
    color, dashes = COLORS[index % len(COLORS)], DASHES[index // len(COLORS)]
    return {"color": color, "linestyle": dashes, **plot_style.line_style(2.0, last)}


def _entry(run: Run, label: str) -> str:
    top1 = "no top-1" if run.best_top1 is None else percent(run.best_top1)
    state = f"  ({run.state})" if run.state != "finished" else ""
    return f"{top1}  {shorten_middle(label, 2 * HALF_WIDTH + 8)}{state}"


def _add_legend(figure: "Figure", entries: list[str], styles: list[dict[str, Any]], num_columns: int) -> None:
    from matplotlib.lines import Line2D

    styles = [*styles, {"color": GREY, "linewidth": 1.4}]
    legend = figure.legend(
        handles=[Line2D([], [], label=entry, **style) for entry, style in zip(entries, styles, strict=False)],
        loc="outside lower left", ncols=num_columns, frameon=False, fontsize=9.5,
        labelcolor=plot_style.INK, handlelength=2.8, labelspacing=0.6, columnspacing=3, borderpad=0.6,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def _set_loss_limits(axes: "Axes", lines: list[np.ndarray], last: float) -> None:
    """Let the lines of diverged runs leave the panel, so that the others stay readable."""
    values = np.concatenate(lines)
    limit = 5 * float(np.quantile([line.max() for line in lines], 0.25, method="lower"))
    if values.min() >= 0 and values.max() > 2 * limit > 0:
        inside = values[values <= limit]
        span = float(inside.max() - inside.min()) or 1.0
        axes.set_ylim(inside.min() - 0.05 * span, inside.max() + 0.1 * span)
        axes.set_title("higher values are not shown", loc="right", fontsize=10.5, color=plot_style.SOFT, pad=9)
    elif last <= 1 and values.min() > 0:
        axes.set_ylim(0, 1.15 * values.max())
