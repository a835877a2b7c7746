"""Compute the geometry of small line charts, such as the curves of a run; the template draws them as SVG in the colours
of the page."""

import math
from dataclasses import dataclass, field

import numpy as np

from imagenet_ddp.runs.curves_figure import Table, column

LEFT, RIGHT, TOP, BOTTOM = 56, 22, 10, 30  # pixels around the plot
PANELS = (
    ("Loss", (("training", "second", "train/loss"), ("validation", "plain", "val/loss"))),
    ("Top-1 accuracy", (("training", "second", "train/top1"), ("validation", "plain", "val/top1"))),
    ("Learning rate", (("learning rate", "plain", "lr"),)),
)


@dataclass(frozen=True)
class Line:
    """A line in a chart. style: plain, second or dashed, which are classes in page.css. x, y: (N,), finite."""

    name: str
    style: str
    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Tick:
    value: float
    text: str


@dataclass
class Chart:
    """A chart whose axes span the first to the last tick. Sizes are in units of the SVG, which scale with its width."""

    title: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    width: int = 420
    height: int = 240
    lines: list[dict] = field(default_factory=list)  # name, style, points, dots
    bars: list[dict] = field(default_factory=list)  # x, y, width, height, title
    left: int = LEFT
    right: int = RIGHT

    def x(self, value: float) -> float:
        low, high = self.x_ticks[0].value, self.x_ticks[-1].value
        return round(LEFT + (value - low) / (high - low or 1) * (self.width - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0].value, self.y_ticks[-1].value
        return round(self.height - BOTTOM - (value - low) / (high - low or 1) * (self.height - TOP - BOTTOM), 1)

    def add_line(self, line: Line) -> None:
        places = [(self.x(x), self.y(y)) for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True)]
        dots = [(*place, f"{line.name} {y:.4g} at {x:g}")
                for place, x, y in zip(places, line.x.tolist(), line.y.tolist(), strict=True)]  # fmt: skip
        self.lines.append({
            "name": line.name, "style": line.style, "points": " ".join(f"{x},{y}" for x, y in places),
            "dots": dots if len(dots) <= 60 and line.style != "dashed" else [],
        })  # fmt: skip

    def add_bars(self, bars: list[tuple[float, float, float, str]]) -> None:
        """Add bars, each given as (left x, right x, y, title)."""
        for low, high, top, title in bars:
            left, right, up = self.x(low), self.x(high), self.y(top)
            height = self.y(self.y_ticks[0].value) - up
            self.bars.append({"x": left + 1, "y": up, "width": right - left - 2, "height": height, "title": title})


def ticks(low: float, high: float, at_most: int = 6, *, percent: bool = False, whole: bool = False) -> list[Tick]:
    """Return ticks at round values that span low to high. percent: label fractions in percent. whole: integers only."""
    if not high > low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    raw = (high - low) / (at_most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    values = [number * step for number in range(first, last + 1)]
    if percent:
        digits = max(0, -math.floor(math.log10(step * 100) + 1e-9))
        return [Tick(value, f"{value * 100:.{digits}f} %") for value in values]
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    if step < 1e-4 or high >= 1e5:
        return [Tick(value, f"{value:.3g}") for value in values]
    return [Tick(value, f"{value:.{digits}f}") for value in values]


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
