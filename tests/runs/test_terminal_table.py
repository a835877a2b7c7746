import math

import pytest

from imagenet_ddp.runs.terminal_table import BLOCKS, head, row, sparkline


@pytest.mark.parametrize("values", [
    {"epoch": 1.0},
    {"epoch": 999, "train/loss": 12345.6, "train/top1": 1.0, "val/loss": math.nan, "val/top1": 1.0, "val/top5": None,
     "images_per_s": 12345.6, "data_wait_frac": 0.999, "train_s": 86_399.0},
])  # fmt: skip
def test_a_row_stands_below_its_titles(values: dict):
    text = row(values, 300 if values["epoch"] < 300 else None, is_best=True)
    assert len(text) == len(head()) <= 80
    for title in ("val loss", "top-5"):
        end = head().index(title) + len(title)
        assert text[end - 1] == "-" and text[end : end + 1] in ("", " ")


def test_top5_can_be_left_out():
    values = {"epoch": 1.0, "val/top1": 0.5, "val/top5": 1.0, "images_per_s": 7.0}
    title, text = head(has_top5=False), row(values, 5, has_top5=False)
    assert "top-5" not in title and "100.00 %" not in text
    assert len(title) == len(text) < len(head())
    assert text[: title.index("images/s") + len("images/s")].endswith(" 7.0")


def test_a_sparkline_is_as_wide_as_its_values_and_no_wider():
    assert sparkline([0.0, 1.0], 5) == BLOCKS[0] + BLOCKS[-1]
    assert sparkline([2.0, 2.0], 5) == BLOCKS[0] * 2
    assert sparkline([], 5) == sparkline([math.nan], 5) == ""
    assert sparkline([0.0, math.nan, 7.0], 9) == BLOCKS[0] + " " + BLOCKS[-1]
    many = sparkline([float(index) for index in range(1000)], 8)
    assert many == "".join(sorted(many)) and len(many) == 8
