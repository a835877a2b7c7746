import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from imagenet_ddp.models.calibration import calibrate, calibration_error, log_sums


def drawn(scale: float) -> tuple[Tensor, Tensor]:
    """Logits, `scale` times those that the labels are drawn from: the best temperature is about `scale`."""
    generator = torch.Generator().manual_seed(5)
    logits = 2 * torch.randn(3000, 7, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return scale * logits, labels


def error_by_formula(probabilities: Tensor, labels: Tensor) -> float:
    """Guo et al. 2017, equation 3, with bins (a, b]."""
    confidence, prediction = probabilities.max(1)
    total = 0.0
    for number in range(15):
        inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        if inside.any():
            accuracy = (prediction == labels)[inside].double().mean()
            total += float(inside.double().mean() * (accuracy - confidence[inside].mean()).abs())
    return total


def measured(logits: Tensor, labels: Tensor) -> dict[str, float]:
    confidence, prediction = logits.softmax(1).max(1)
    gaps = logits.amax(1) - logits.gather(1, labels[:, None])[:, 0]
    losses = F.cross_entropy(logits, labels, reduction="none")
    arrays = [each.numpy() for each in (confidence, prediction == labels, losses, log_sums(logits), gaps)]
    return calibrate(*arrays)


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5, 6.0])
def test_the_temperature_is_that_of_a_search_on_the_logits(scale: float):
    logits, labels = drawn(scale)
    found = measured(logits, labels)
    log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([log_t], max_iter=100, line_search_fn="strong_wolfe", tolerance_change=1e-12)

    def closure() -> Tensor:
        search.zero_grad()
        loss = F.cross_entropy(logits / log_t.exp(), labels)
        loss.backward()
        return loss

    search.step(closure)
    temperature = float(log_t.detach().exp())
    assert found["temperature"] == pytest.approx(temperature, rel=1e-3)
    assert temperature == pytest.approx(scale, rel=0.05)
    assert found["nll"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-6)
    assert found["nll_at_temperature"] == pytest.approx(float(F.cross_entropy(logits / temperature, labels)), rel=1e-5)
    assert found["ece"] == pytest.approx(error_by_formula(logits.softmax(1), labels), abs=1e-6)
    assert found["ece_at_temperature"] == pytest.approx(
        error_by_formula((logits / found["temperature"]).softmax(1), labels), abs=2e-3
    )


def test_the_error_is_torchmetrics_but_for_a_confidence_of_1():
    logits, labels = drawn(2.5)
    theirs = float(multiclass_calibration_error(logits.softmax(1), labels, num_classes=7, n_bins=15))
    assert measured(logits, labels)["ece"] == pytest.approx(theirs, abs=1e-6)
    # 1.0 and 0.95 are in one bin: its accuracy is 1/2, its mean confidence 0.975
    assert calibration_error(np.array([1.0, 0.95]), np.array([False, True])) == pytest.approx(0.475)


def test_extreme_logits():
    small = torch.tensor([[3.0, 0.0], [0.0, 2.0]])  # the temperature is bounded
    assert measured(small, torch.tensor([0, 1]))["temperature"] == pytest.approx(0.1)
    assert measured(small, torch.tensor([1, 0]))["temperature"] == pytest.approx(10.0)
    logits, labels = drawn(2.5)  # excluded classes do not count
    wider = torch.cat([logits, torch.full((len(logits), 2), float("-inf"), dtype=torch.float64)], 1)
    assert measured(wider, labels) == measured(logits, labels)
    nans = np.full(4, np.nan, np.float32)
    found = calibrate(nans, np.zeros(4, bool), nans, np.full((4, 41), np.nan, np.float32), nans)
    assert np.isnan(found["ece"]) and np.isnan(found["nll"])
