import math

import pytest

from imagenet_ddp.runs.terminal_table import head, row


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
