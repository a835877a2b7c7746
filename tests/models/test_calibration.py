from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from imagenet_ddp.config.figures import NO_TEMPERATURE
from imagenet_ddp.models.calibration import calibrate, calibrating_factor, calibration_error, log_sums
from imagenet_ddp.use.evaluation_results import results_lines


def drawn(scale: float) -> tuple[Tensor, Tensor]:
    """Logits, `scale` times those that the labels are drawn from: the best temperature is about `scale`."""
    generator = torch.Generator().manual_seed(5)
    logits = 2 * torch.randn(3000, 7, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return scale * logits, labels


def measured(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    confidence, prediction = logits.softmax(1).max(1)
    gaps = logits.amax(1) - logits.gather(1, labels[:, None])[:, 0]
    losses = F.cross_entropy(logits, labels, reduction="none")
    arrays = [each.numpy() for each in (confidence, prediction == labels, losses, log_sums(logits), gaps)]
    return calibrate(*arrays)


def test_the_temperature_is_that_of_the_draw_and_the_error_is_torchmetrics():
    """tests/use/test_evaluate.py compares them with a search on the logits of a net."""
    logits, labels = drawn(2.5)
    found = measured(logits, labels)
    assert found["temperature"] == pytest.approx(2.5, rel=0.05)
    for name, temperature in (("ece", 1.0), ("ece_at_temperature", found["temperature"])):
        probabilities = (logits / temperature).softmax(1)
        theirs = float(multiclass_calibration_error(probabilities, labels, num_classes=7, n_bins=15))
        assert found[name] == pytest.approx(theirs, abs=2e-3)
    # 1.0 and 0.95 are in one bin, unlike in torchmetrics: its accuracy is 1/2, its mean confidence 0.975
    assert calibration_error(np.array([1.0, 0.95]), np.array([False, True])) == pytest.approx(0.475)


def test_extreme_logits():
    small = torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]])  # the temperature is bounded
    for labels in ([0, 1, 0], [1, 0, 1], [0, 1, 1]):  # no mistake, nothing right, and a mistake that any of them has
        found = measured(small, torch.tensor(labels))
        assert [found[name] for name in found if "temperature" in name] == [None] * 3
        (line,) = results_lines({"calibration": found})
        assert line.endswith(f"; {NO_TEMPERATURE}")
    logits, labels = drawn(2.5)  # excluded classes do not count
    wider = torch.cat([logits, torch.full((len(logits), 2), float("-inf"), dtype=torch.float64)], 1)
    assert measured(wider, labels) == measured(logits, labels)
    nans = np.full(4, np.nan, np.float32)
    found: dict[str, Any] = calibrate(nans, np.zeros(4, bool), nans, np.full((4, 41), np.nan, np.float32), nans)
    assert np.isnan(found["ece"]) and np.isnan(found["nll"])


def test_the_factor_is_the_inverse_of_the_best_temperature_and_finite_where_all_are_right():
    for scale in (0.3, 1.0, 2.5):
        logits, labels = drawn(scale)
        found = calibrating_factor(logits, labels)
        assert found == pytest.approx(1 / measured(logits, labels)["temperature"], rel=0.01)
        assert calibrating_factor(found * logits, labels) == pytest.approx(1, abs=1e-3)
    for scale in (0.01, 1.0, 1000.0):  # all right, of 60: half an image counts as wrong
        logits = scale * F.one_hot(torch.arange(60) % 3).float()
        confidence = (calibrating_factor(logits, torch.arange(60) % 3) * logits).softmax(1).amax(1)
        assert confidence.mean().item() == pytest.approx(1 - 0.5 / 61, abs=1e-3)
