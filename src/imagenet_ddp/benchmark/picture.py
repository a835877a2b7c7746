"""Draw the rows of benchmark.json: one panel per group, one bar per median, one dot per repeat."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from imagenet_ddp.runs import plot_style
from imagenet_ddp.system.text_table import shorten_middle


def draw(content: Mapping[str, Any]) -> bytes:
    """Return the picture of a benchmark.json as PNG bytes."""
    groups = [(name, list(rows)) for name, rows in groupby(content["rows"], key=lambda row: row["group"])]
    heights = [len(rows) + 1.2 for _, rows in groups]
    machine = content["machine"]
    most = max(len(row["all"]) for row in content["rows"])
    repeats = f"; medians and all {most} repeats" if most > 1 else ""
    subtitle = f"{machine['cpu']}, {machine['num_cores']} cores{repeats}"
    figure = plot_style.new_figure(9, 0.9 + 0.42 * sum(heights), f"benchmark={content['mode']}", subtitle)
    panels = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, rows) in zip(panels, groups, strict=True):
        for place, row in enumerate(rows):
            color = plot_style.PALETTE[0] if row.get("own", True) else "#9AA3AF"
            axes.barh(place, row["median"], color=color, height=0.62)
            if most > 1:
                axes.plot(row["all"], [place] * len(row["all"]), "o", color="black", markersize=3, alpha=0.5)
            shown = f"  {row['median']:,.4g}" + (f"  ({row['ratio']:.2f})" if row["ratio"] is not None else "")
            axes.text(max(row["median"], *row["all"]), place, shown, va="center", fontsize=9)
        axes.set_yticks(range(len(rows)), [shorten_middle(row["title"], 44) for row in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.25 * max(max(row["all"]) for row in rows))
        axes.set_title(name, loc="left", fontsize=11)
        axes.set_xlabel(rows[0]["unit"])
        axes.grid(True, axis="x", color="#E4E6EA")
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return plot_style.png(figure)
