"""Bins of the reliability diagram."""

import numpy as np
import pytest

from imagenet_ddp.report.page.calibration import bins, diagram, expected_error


def test_bins_and_error():
    confidence = np.array([0.05, 0.95, 1.0, 0.94])
    is_right = np.array([False, True, True, False])
    found = bins(confidence, is_right)
    assert [(each.low, each.high, each.num_images) for each in found] == [(0, 1 / 15, 1), (14 / 15, 1, 3)]
    assert found[1].accuracy == pytest.approx(2 / 3)
    assert expected_error(found) == pytest.approx((0.05 + abs(2.89 - 2)) / 4)


def test_the_diagram():
    confidence = np.repeat([0.3, 0.5, 1.0], [4, 5, 5])
    chart = diagram(bins(confidence, confidence == 0.5))
    assert "at least 5 images" in chart.title
    assert [line["name"] for line in chart.lines] == ["perfectly calibrated", "this run"]
    assert chart.lines[1]["points"] == f"{chart.x(0.5)},{chart.y(1)} {chart.x(1)},{chart.y(0)}"
    assert [bar["height"] > 0 for bar in chart.bars] == [True, False]
