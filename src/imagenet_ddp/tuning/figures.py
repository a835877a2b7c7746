"""Optuna's figures, made presentable and written as PNG. matplotlib is imported only to draw."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_ddp.run import look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

TITLES = {
    "history": "Validation top-1 of each finished trial, and the best so far",
    "importances": "How much each key mattered for a high validation top-1 (PED-ANOVA)",
    "slices": "Validation top-1 over each searched key",
    "parallel": "Every finished trial as a line through its values",
    "epochs": "Validation top-1 of each trial, epoch by epoch",
}
LABELS = {"Step": "epoch", "Intermediate Value": "val top-1", "Hyperparameter Importance": "importance, in all 1",
          "Hyperparameter": "", "Trial": "trial"}  # fmt: skip
PANEL_WIDTH, LEGEND_TRIALS = 3.6, 20  # inches; beyond so many trials a legend says nothing


def save(draw: Callable[[], Any], folder: Path, name: str) -> Path:
    """draw: makes the axes with pyplot, whose current figure is then saved and forgotten."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    try:
        with pyplot.style.context("default"):
            draw()
            figure = pyplot.gcf()
            panels = [axes for axes in figure.axes if axes.get_xlabel()] if name == "slices" else []
            figure.set_size_inches(max(10, PANEL_WIDTH * len(panels)), 5.5)
            for axes in figure.axes:
                for place in ("left", "center", "right"):
                    axes.set_title("", loc=place)
                _tidy(axes, name)
            figure.suptitle(TITLES[name], fontsize=14, color=look.INK)
            out = folder / f"{name}.png"
            figure.savefig(out, dpi=look.DPI, bbox_inches="tight", facecolor="white")
    finally:
        pyplot.close("all")
    return out


def _tidy(axes: "Axes", name: str) -> None:
    from matplotlib.ticker import MaxNLocator

    for axis, label in ((axes.xaxis, axes.get_xlabel()), (axes.yaxis, axes.get_ylabel())):
        if label in ("Step", "Trial"):  # counted
            axis.set_major_locator(MaxNLocator(integer=True))
        axis.set_label_text(LABELS.get(label, label))
        if axis.get_scale() == "log":
            _log_ticks(axis)
    texts = [text.get_text() for text in axes.get_xticklabels()]
    if name == "slices" and any(text.startswith("'") for text in texts):
        axes.set_xticks(axes.get_xticks(), [text.strip("'") for text in texts], rotation=20, ha="right")
    legend = axes.get_legend()
    if legend is not None and (name == "importances" or len(legend.get_texts()) > LEGEND_TRIALS):
        legend.remove()


def _log_ticks(axis: "Axis") -> None:
    """Numbers that fit side by side: with their powers of ten written out they run into each other."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    steps = (1.0, 2.0, 5.0) if math.log10(high / low) < 2 else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps, numticks=8))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())
