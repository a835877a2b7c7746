"""Format the epochs of a run within 80 columns, as rows of a text table. Does not import torch."""

import math
from collections.abc import Callable, Mapping, Sequence

from imagenet_ddp.system.text import duration, format_loss, percent

_WIDTHS = {
    "epoch": 7, "train loss": 11, "top-1": 9, "val loss": 9, "top-1 ": 10, "top-5": 9, "images/s": 9, "wait": 7,
    "time": 9,
}  # fmt: skip


def head(*, has_top5: bool = True) -> str:
    """Return the column titles. has_top5: include val/top5."""
    return _line(list(_WIDTHS), has_top5)


def row(
    values: Mapping[str, float | None], max_epochs: int | None, *, is_best: bool = False, has_top5: bool = True
) -> str:
    """Format one row of the table. values: a row of metrics.csv; missing values become "-". is_best: mark the
    validation top-1 with a star. has_top5: include val/top5."""
    epoch = f"{values['epoch']:.0f}" + (f"/{max_epochs}" if max_epochs and max_epochs > 0 else "")
    speed = _cell(values, "images_per_s", lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.1f}")
    cells = [
        epoch, _cell(values, "train/loss", format_loss), _cell(values, "train/top1", percent),
        _cell(values, "val/loss", format_loss), _cell(values, "val/top1", percent) + ("*" if is_best else " "),
        _cell(values, "val/top5", percent), speed,
        _cell(values, "data_wait_frac", lambda value: percent(value, 1)), _cell(values, "train_s", duration),
    ]  # fmt: skip
    return _line(cells, has_top5)


def _line(cells: Sequence[str], has_top5: bool) -> str:
    columns = zip(cells, _WIDTHS.items(), strict=True)
    return "".join(cell.rjust(width) for cell, (title, width) in columns if has_top5 or title != "top-5")


def _cell(values: Mapping[str, float | None], name: str, form: Callable[[float], str]) -> str:
    value = values.get(name)
    return "-" if value is None or math.isnan(value) else form(value)
