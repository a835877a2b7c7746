"""Of two classes, the page of a run says what each threshold finds, and what it takes wrongly."""

import re
from html import unescape
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch
from helpers.fake_predictions import write_evaluation
from torchmetrics.functional.classification import binary_auroc

from imagenet_ddp.report.decision_threshold import AT_LEAST, auroc_words, operating_point
from imagenet_ddp.report.page import make_page
from imagenet_ddp.runs import plots


def drawn(num_ill: int, num_healthy: int, shift: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities of being ill, and whether each is."""
    is_ill = np.arange(num_ill + num_healthy) < num_ill
    return 1 / (1 + np.exp(-np.random.default_rng(seed).normal(shift * is_ill - 2, 1.0))), is_ill


def test_each_threshold_finds_its_share_and_the_next_higher_one_does_not():
    for seed in range(20):
        scores, is_ill = drawn(10 + 3 * seed, 200, 2.0, seed)
        for goal in AT_LEAST:
            point = operating_point(scores, is_ill, goal)
            assert point.num_found >= goal * is_ill.sum() - 1e-9
            said = scores >= point.threshold
            assert (point.num_found, point.num_false) == (int(said[is_ill].sum()), int(said[~is_ill].sum()))
            assert float(f"{point.threshold:.3g}") == pytest.approx(point.threshold, rel=1e-9), "it can be typed"
            higher = point.threshold * 1.01
            assert (scores[is_ill] >= higher).sum() < goal * is_ill.sum()
    assert operating_point(np.array([1.0, 0.0]), np.array([True, False]), 0.99).threshold == 1


def test_the_area_is_that_of_torchmetrics_and_its_interval_has_the_true_one_as_often_as_it_says():
    true, num_inside = NormalDist().cdf(1.5 / 2**0.5), 0
    for seed in range(400):
        scores, is_ill = drawn(40, 120, 1.5, seed)
        scores = scores if seed % 2 else scores.round(2)  # some are equal
        area, low, high = map(float, re.findall(r"0\.\d+", auroc_words(scores[is_ill], scores[~is_ill])))
        assert area == pytest.approx(float(binary_auroc(torch.tensor(scores), torch.tensor(is_ill).int())), abs=6e-4)
        num_inside += low <= true <= high
    assert 0.92 <= num_inside / 400 <= 0.98
    assert auroc_words(np.array([0.9, 0.8]), np.array([0.1, 0.2])) == "1.000", "no interval can be computed"


def test_the_page_of_two_classes_has_the_thresholds_for_the_rarer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plots, "png", lambda *_, **__: b"PNG")
    scores, is_ill = drawn(30, 300, 2.0)

    def page_of(name: str, classes: list[str], probabilities: np.ndarray, target: np.ndarray) -> str:
        page = make_page(write_evaluation(tmp_path / name, probabilities, target, classes), tmp_path, maps=False,
                         delimiter="comma", near_copies=None)  # fmt: skip
        assert page is not None
        return unescape(" ".join(re.sub("<[^>]*>", " ", page.files["report.html"].decode()).split()))

    for place in (0, 1):  # of the rarer class
        columns = np.stack([scores, 1 - scores], 1)
        text = page_of(f"r{place}", ["krank ü", "gesund"][:: 1 - 2 * place], columns[:, :: 1 - 2 * place],
                       np.where(is_ill, place, 1 - place))  # fmt: skip
        section = text.partition("Decision threshold")[2].partition("Mistakes and wrong labels")[0]
        rows = re.findall(r"(\d+) % found ([\d.e-]+) %", section)
        assert [int(goal) for goal, _ in rows] == [99, 95, 90, 80]
        for goal, threshold in rows:
            said = scores >= float(threshold) / 100
            assert said[is_ill].mean() >= int(goal) / 100
            assert f"{threshold} % {'30 of 30' if said[is_ill].all() else f'{said[is_ill].mean():.1%}'[:-1]}" in section
            assert f" {said[is_ill].sum()} of {said.sum()}" in section
        assert "30 images of krank ü and 300 of gesund" in section and "as predict says 50 %" in section
    few = np.stack([scores, 1 - scores], 1)[[*range(9), *range(30, 60)]]
    assert "Decision threshold" not in page_of("few", ["a", "b"], few, (np.arange(39) >= 9).astype(int))
    three = np.stack([scores, 1 - scores, 0 * scores], 1)
    assert "Decision threshold" not in page_of("three", ["a", "b", "c"], three, (~is_ill).astype(int))
