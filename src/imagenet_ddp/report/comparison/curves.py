"""Draw the curves of several runs in one figure. matplotlib is imported only to draw."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from imagenet_ddp.report.run import Run
from imagenet_ddp.runs import plot_style
from imagenet_ddp.runs.curves_figure import column
from imagenet_ddp.system.text import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREY = "#C4C8CE"


def draw_curves(runs: Sequence[Run], labels: Sequence[str], title: str) -> "Figure":
    """Draw validation top-1 and training loss. runs: best first; those for which the palette has no colour are grey.
    labels: one per run, for the legend."""
    colored = plot_style.PALETTE[: len(runs)]
    subtitle = "Best first" if len(runs) > 1 else ""
    figure = plot_style.new_figure(11, 5.4 + 0.2 * len(colored), title, subtitle)
    panels = {"val/top1": "Validation top-1", "train/loss": "Training loss"}
    for axes, (name, heading) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        lines = [column(run.metrics, name) for run in runs]
        for number, (epochs, values) in reversed(list(enumerate(lines))):  # the best run is drawn last, on top
            color = colored[number] if number < len(colored) else GREY
            axes.plot(epochs, values, color=color, marker="o", markersize=3, label=_entry(runs[number], labels[number]))
        plot_style.style_axes(axes, heading, [values for _, values in lines], percent=name == "val/top1")
    handles = figure.axes[0].get_lines()[::-1][: len(colored)]
    legend = figure.legend(handles=handles, loc="outside lower left", frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def _entry(run: Run, label: str) -> str:
    top1 = "no top-1" if run.best_top1 is None else percent(run.best_top1)
    state = f"  ({run.state})" if run.state != "finished" else ""
    return f"{top1}  {label}{state}"
