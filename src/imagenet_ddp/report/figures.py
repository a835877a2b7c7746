"""The two figures: runs over each other, and how they scale."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_ddp.report.runs import Run, column
from imagenet_ddp.report.scaling import Series
from imagenet_ddp.report.table import cut
from imagenet_ddp.runs import plot_style
from imagenet_ddp.system.text import count_noun, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

COLORS = (
    plot_style.BLUE,
    plot_style.VERMILION,
    plot_style.GREEN,
    plot_style.ORANGE,
    plot_style.PURPLE,
    plot_style.SKY,
    plot_style.BLACK,
)
STROKES: tuple[Any, ...] = ("solid", (0, (4, 2)), (0, (1, 1.5)))  # where the colours begin again
NUM_BRIGHT = 10  # runs with a colour of their own; more cannot be told apart
REST = "#C4C8CE"
HALF = 52  # letters of a legend's line that fit into half of the figure's width
TRAIN_LOSS = "Training loss"
_IDEAL: dict[str, Any] = {"color": plot_style.SOFT, "linewidth": 1.2, "linestyle": (0, (1, 2))}


def curves(runs: Sequence[Run], labels: Sequence[str], title: str) -> "Figure":
    """Validation top-1 and training loss of all runs, best first: the first ones in colour, the rest in grey."""
    from matplotlib.lines import Line2D

    bright = list(enumerate(runs[:NUM_BRIGHT]))
    words = [_label(run, labels[place]) for place, run in bright]
    words += [f"{len(runs) - NUM_BRIGHT} more"] if len(runs) > NUM_BRIGHT else []
    figure, num_columns = _blank(words)
    top1, loss = figure.subplots(1, 2)
    last = max((float(run.metrics["epoch"].max(initial=1)) for run in runs), default=1.0)
    for axes, name, heading, scale in (
        (top1, "val/top1", "Validation top-1", 100),
        (loss, "train/loss", TRAIN_LOSS, 1),
    ):
        lines = [(epochs, values * scale) for epochs, values in (column(run, name) for run in runs)]
        for epochs, values in lines[NUM_BRIGHT:]:
            lone: dict[str, Any] = (
                {"marker": "o", "markersize": 3.5} if len(epochs) == 1 else {}
            )  # or it would not be seen
            axes.plot(epochs, values, color=REST, linewidth=1.0, zorder=2, **lone)
        for place, run in reversed(bright):  # the best on top
            (epochs, values), order = lines[place], 3 + (NUM_BRIGHT - place) / 20
            axes.plot(epochs, values, zorder=order, **_style(place, last))
            if run.state != "finished":
                axes.plot(epochs[-1:], values[-1:], zorder=order, **_open_end(place))
        every = np.concatenate([values for _, values in lines])
        plot_style.style_axes(axes, heading, "", plot_style.SOFT, last)
        axes.set_xlabel("epoch", color=plot_style.SOFT, fontsize=10)
        if not len(every):
            plot_style.nothing(axes)
        elif scale == 100:
            plot_style.percent_scale(axes, every, last)
        else:
            _loss_scale(axes, [values for _, values in lines if len(values)], last)
    styles: list[dict[str, Any]] = [_style(place, last) for place, _ in bright] + [{"color": REST, "linewidth": 1.4}]
    keys = [Line2D([], [], label=text, **style) for text, style in zip(words, styles, strict=False)]
    _legend(figure, keys, num_columns)
    unfinished = sum(run.state != "finished" for run in runs)
    open_ends = f"   ·   {unfinished} not finished (open end of the line)" if unfinished else ""
    plot_style.headline(
        figure, title, f"{len(runs)} runs, the best first{open_ends}" if len(runs) > 1 else f"1 run{open_ends}"
    )
    return figure


def speed(series: Sequence[Series], title: str) -> "Figure":
    """images/s beside the ideal, and the efficiency, over the number of devices."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullLocator

    several = len(series) > 1
    names = ["ideal", *(one.label or "measured" for one in series[:NUM_BRIGHT])]
    figure, num_columns = _blank(names)
    rate, share = figure.subplots(1, 2)
    sizes = sorted({world.num_devices for one in series for world in one.worlds})
    several_nodes = any((world.num_nodes or 1) > 1 for one in series for world in one.worlds)
    keys = [Line2D([], [], label=names[0], **_IDEAL)]
    for place, one in enumerate(series[:NUM_BRIGHT]):
        style: dict[str, Any] = {**_style(place, 1), "markersize": 6}
        base, devices = one.worlds[0], [world.num_devices for world in one.worlds]
        rate.plot(devices, [base.images_per_s * size / base.num_devices for size in devices], zorder=2, **_IDEAL)
        rate.plot(devices, [world.images_per_s for world in one.worlds], zorder=3, **style)
        share.plot(devices, [100 * world.efficiency for world in one.worlds], zorder=3, **style)
        keys.append(Line2D([], [], label=names[place + 1], **style))
        for world in one.worlds if not several else []:
            nodes = f"\n{count_noun(world.num_nodes, 'node')}" if several_nodes and world.num_nodes else ""
            share.annotate(f"{percent(world.efficiency, 0)}{nodes}", (world.num_devices, 100 * world.efficiency),
                           textcoords="offset points", xytext=(0, -10), ha="center", va="top", fontsize=9.5,
                           color=plot_style.INK)  # fmt: skip
    share.axhline(100, zorder=2, **_IDEAL)
    for axes, heading in ((rate, "Training speed, images/s"), (share, "Efficiency")):
        plot_style.style_axes(axes, heading, "", plot_style.SOFT, 2)
        axes.set_xlabel("devices", color=plot_style.SOFT, fontsize=10)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        room = (sizes[-1] / sizes[0]) ** 0.08
        axes.set_xlim(sizes[0] / room, sizes[-1] * room)
    if sizes[-1] >= 4 * sizes[0]:
        rate.set_yscale("log")
        rate.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=20))
        rate.yaxis.set_minor_locator(NullLocator())
    else:
        rate.set_ylim(0, None)
    rate.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}")
    highest = max(100.0, *(100 * world.efficiency for one in series for world in one.worlds))
    share.set_ylim(0, 1.06 * highest)
    share.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    _legend(figure, keys, num_columns)
    batches = {one.batch_words() for one in series}
    plot_style.headline(figure, title, batches.pop() if len(batches) == 1 else f"{len(series)} series")
    return figure


def _blank(words: Sequence[str]) -> "tuple[Figure, int]":
    """A figure with room for a legend below its panels, and the legend's number of columns."""
    num_columns = 2 if len(words) > 1 and max(map(len, words), default=0) <= HALF else 1
    return plot_style.blank(11, 5.1 + 0.24 * -(-len(words) // num_columns), head=0.88), num_columns


def _style(place: int, last: float) -> dict[str, Any]:
    color, dashes = COLORS[place % len(COLORS)], STROKES[place // len(COLORS)]
    return {"color": color, "linestyle": dashes, **plot_style.stroke(2.0, last)}


def _open_end(place: int) -> dict[str, Any]:
    return {"color": COLORS[place % len(COLORS)], "linestyle": "none", "marker": "o", "markersize": 8,
            "markerfacecolor": "white", "markeredgewidth": 2.0}  # fmt: skip


def _label(run: Run, label: str) -> str:
    top1 = "no top-1" if run.best_top1 is None else percent(run.best_top1)
    return f"{top1}  {cut(label, 2 * HALF + 8)}" + (f"  ({run.state})" if run.state != "finished" else "")


def _legend(figure: "Figure", keys: "list[Line2D]", num_columns: int) -> None:
    legend = figure.legend(
        handles=keys, loc="outside lower left", ncols=num_columns, frameon=False, fontsize=9.5,
        labelcolor=plot_style.INK, handlelength=2.8, labelspacing=0.6, columnspacing=3, borderpad=0.6,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def _loss_scale(axes: "Axes", lines: list[np.ndarray], last: float) -> None:
    """Where runs diverged, their lines leave the panel, and the others stay readable."""
    every = np.concatenate(lines)
    calm = 5 * float(np.quantile([values.max() for values in lines], 0.25, method="lower"))
    if every.min() >= 0 and every.max() > 2 * calm > 0:
        inside = every[every <= calm]
        room = float(inside.max() - inside.min()) or 1.0
        axes.set_ylim(inside.min() - 0.05 * room, inside.max() + 0.1 * room)
        axes.set_title("higher values are not shown", loc="right", fontsize=10.5, color=plot_style.SOFT, pad=9)
    elif last <= 1 and every.min() > 0:
        axes.set_ylim(0, 1.15 * every.max())
