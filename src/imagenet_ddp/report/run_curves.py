"""Draw the validation score and the training loss of several runs over the epochs. matplotlib is imported only to
draw."""

import textwrap
from typing import TYPE_CHECKING

from imagenet_ddp.config.figures import figure_of
from imagenet_ddp.report.compared_runs import ComparedRuns, set_name
from imagenet_ddp.runs import plots
from imagenet_ddp.system.text_table import shorten_middle

if TYPE_CHECKING:
    from matplotlib import figure as diagrams

MAX_LABEL = 90  # characters
GREY = "#C4C8CE"  # of curves for which the palette has no colour


def draw_curves(compared: ComparedRuns, title: str) -> "diagrams.Figure":
    """Draw the score, that of the best run, and the training loss. Runs for which the palette has no colour are
    grey."""
    runs, several = compared.runs, compared.several_sets
    colored = plots.PALETTE[: len(runs)]
    order = "Best first of each set of validation images" if several else "Best first" if len(runs) > 1 else ""
    figure = plots.new_figure(11, 5.4 + 0.2 * len(colored), title, order)
    score = runs[0].score
    panels = {f"val/{score.name}": f"Validation {score.title}", "train/loss": "Training loss"}
    for axes, (name, heading) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        lines = [plots.column(run.metrics, name) for run in runs]
        for number, (epochs, values) in reversed(list(enumerate(lines))):  # the best run is drawn last, on top
            color = colored[number] if number < len(colored) else GREY
            axes.plot(epochs, values, color=color, marker="o", markersize=3)
        plots.style_axes(axes, heading, [values for _, values in lines], percent=figure_of(name).is_share)
    entries = [
        f"{f'on {set_name(number)}  ' if several else ''}"
        f"{f'no {run.score.title}' if run.best is None else run.score.text(run.best)}  {label}  ({run.state})"
        for run, label, number in zip(runs, labels(compared), compared.set_of, strict=True)
    ]
    handles = figure.axes[0].get_lines()[::-1][: len(colored)]
    legend = figure.legend(handles, entries[: len(colored)], loc="outside lower left", frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def labels(compared: ComparedRuns) -> list[str]:
    """Return a label for each run, such as "sweep/0: lr=0.1 seed=1"."""
    differences = compared.differences
    texts = [differences.describe(run, differences.keys) for run in compared.runs]
    names = [shorten_middle(name, MAX_LABEL // 2) for name in compared.names()]
    return [
        textwrap.shorten(f"{name}: {text}" if text else name, MAX_LABEL, placeholder=" …", break_on_hyphens=False)
        for name, text in zip(names, texts, strict=True)
    ]
