"""Give all figures the same style. matplotlib is imported only to draw, because the import takes half a second."""

import io
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, whose colours can be told apart with every kind of colour vision, without its yellow, which
# is too light for lines.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000")


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


def style_axes(axes: "Axes", title: str, values: Iterable[np.ndarray], *, percent: bool = False) -> None:
    """Set title, ticks and scale. values: the y values of each line; if they diverge, the y axis is logarithmic.
    percent: label the y axis in percent, and end it at 100 %."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    every = np.concatenate([*values, np.empty(0)])
    axes.set_title(title, loc="left")
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(True, color="#E4E6EA")
    axes.spines[["top", "right"]].set_visible(False)
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        axes.set_ylim(top=min(axes.get_ylim()[1], 1.0))
        for line in axes.get_lines():
            if np.size(line.get_xdata()):  # constrained layout makes room for an empty line that is not clipped
                line.set_clip_on(False)  # so that markers at 100 % are whole
    elif len(every) and every.min() > 0 and every.max() > 50 * np.median(every):
        axes.set_yscale("log")
