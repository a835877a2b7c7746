"""Ticks and places of charts."""

import pytest

from imagenet_ddp.report.page.chart import ticks


@pytest.mark.parametrize(
    ("low", "high", "options", "texts"),
    [
        (0.5, 1.97, {}, ["0.5", "1.0", "1.5", "2.0"]),
        (0.34, 0.676, {"percent": True}, ["30 %", "40 %", "50 %", "60 %", "70 %"]),
        (0.981, 0.983, {"percent": True}, ["98.10 %", "98.15 %", "98.20 %", "98.25 %", "98.30 %"]),
        (1, 3, {"whole": True}, ["1", "2", "3"]),
        (0, 0.0013, {}, ["0.0000", "0.0005", "0.0010", "0.0015"]),
    ],
)
def test_round_ticks(low: float, high: float, options: dict, texts: list[str]):
    found = ticks(low, high, **options)
    assert [tick.text for tick in found] == texts
    assert found[0].value <= low + 1e-12 and found[-1].value >= high - 1e-12


def test_one_value_is_in_the_middle():
    found = ticks(2.0, 2.0)
    assert found[0].value < 2 < found[-1].value
    assert len(ticks(0.0, 0.0)) > 1
    assert ticks(1, 1, whole=True)[0].text in ("0", "1")
