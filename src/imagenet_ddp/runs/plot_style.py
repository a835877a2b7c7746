"""The look that all figures share: size, colours, heading, panels over epochs. matplotlib is imported only to draw."""

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_ddp.system.atomic_write import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette without its yellow, which is too light for lines: apart for every kind of colour vision.
BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
DASHES = (0, (4, 2))
INK, SOFT, GRID = "#1A1A1A", "#5F6368", "#E4E6EA"
DOTS_UP_TO = 24  # epochs: below it every measured point shows as a dot
DPI = 150


def blank(width: float, height: float, head: float) -> "Figure":
    """Inches; head: height at the top that panels leave free, for heading and subtitle."""
    # Imported here: it takes about half a second, which only pictures need. Without pyplot: no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0.006, 0.006, 0.988, 1 - head / height - 0.006), w_pad=0.1, h_pad=0.12)
    return figure


def headline(figure: "Figure", text: str, subtitle: str) -> None:
    """Bold, and shortened to the figure's width; the subtitle below it."""
    height = figure.get_figheight()
    heading = figure.text(0.016, 1 - 0.243 / height, " ".join(text.split()), parse_math=False)
    heading.set(fontsize=16, fontweight="bold", color=INK, va="center")
    with any_sign():
        while heading.get_window_extent().x1 > 0.984 * figure.bbox.width:
            heading.set_text(heading.get_text()[:-3] + "…")
    below = figure.text(0.016, 1 - 0.593 / height, subtitle, parse_math=False)
    below.set(fontsize=11, color=SOFT, va="center")


@contextlib.contextmanager
def any_sign() -> Iterator[None]:
    """Signs that the font lacks are drawn as boxes, without a warning for each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        yield


def save(figure: "Figure", out: Path) -> None:
    """A PNG that replaces `out` in one step."""
    write_whole(out, png(figure))


def png(figure: "Figure", **texts: str) -> bytes:
    """texts: chunks of the file that say something about it."""
    stream = io.BytesIO()
    with any_sign():
        figure.savefig(stream, format="png", dpi=DPI, facecolor="white", metadata=texts)
    return stream.getvalue()


def stroke(width: float, last: float) -> dict[str, Any]:
    """Dots while they can be told apart, thinner lines where hundreds of epochs crowd."""
    return {"linewidth": width if last <= 120 else 0.7 * width, "marker": "o", "markersize": 4.5 * (last <= DOTS_UP_TO)}


def percent_scale(axes: "Axes", values: np.ndarray, last: float) -> None:
    from matplotlib.ticker import MaxNLocator

    low, high = (values.min(), values.max()) if last > 1 else (0, 100)
    room = max(0.08 * (high - low), 1.0)
    axes.set_ylim(max(low - room, -2), min(high + room, 102))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %" if 0 <= value <= 100 else "")


def nothing(axes: "Axes") -> None:
    axes.set_yticks([])
    axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", va="center", color=SOFT, fontsize=11)


def style_axes(axes: "Axes", title: str, note: str, color: str, last: float) -> None:
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=9)
    axes.set_title(note, loc="right", fontsize=10.5, color=color, pad=9)
    axes.set_xlim((0.5, 1.5) if last <= 1 else (1 - 0.02 * (last - 1), last + 0.02 * (last - 1)))
    axes.set_xticks(epoch_ticks(last))
    axes.grid(True, color=GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=10, labelcolor=SOFT, pad=6)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color("#B8BCC2")


def epoch_ticks(last: float) -> list[int]:
    """The first, the last, and round numbers between that keep their distance from both."""
    end = max(int(last), 1)
    step = next(step * 10**power for power in range(12) for step in (1, 2, 5) if end <= 9 * step * 10**power)
    return sorted({1, *(tick for tick in range(step, end, step) if 1 + step / 2 <= tick <= end - step / 2), end})
