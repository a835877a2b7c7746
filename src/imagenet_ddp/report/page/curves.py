"""Draw loss, top-1 and learning rate over the epochs."""

import numpy as np

from imagenet_ddp.report.page.chart import Chart, Line, ticks
from imagenet_ddp.runs.curves_figure import Table, column

PANELS = (
    ("Loss", (("training", "second", "train/loss"), ("validation", "plain", "val/loss"))),
    ("Top-1 accuracy", (("training", "second", "train/top1"), ("validation", "plain", "val/top1"))),
    ("Learning rate", (("learning rate", "plain", "lr"),)),
)


def curves(metrics: Table) -> list[Chart]:
    """Return the charts for which metrics.csv has values."""
    charts = []
    for title, named in PANELS:
        lines = [Line(name, style, *column(metrics, key)) for name, style, key in named]
        lines = [line for line in lines if len(line.x)]
        if not lines:
            continue
        x, y = (np.concatenate([getattr(line, axis) for line in lines]) for axis in "xy")
        low = 0.0 if title == "Learning rate" else float(y.min())
        chart = Chart(title, ticks(float(x.min()), float(x.max()), 7, whole=True),
                      ticks(low, float(y.max()), percent=title.startswith("Top")))  # fmt: skip
        for line in lines:
            chart.add_line(line)
        charts.append(chart)
    return charts
