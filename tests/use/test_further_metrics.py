import pytest
import torch

from imagenet_ddp.config.schema.evaluate import METRICS
from imagenet_ddp.models.task import has_class
from imagenet_ddp.use.further_metrics import further_metrics

NONE = torch.tensor([], dtype=torch.int64)


def test_further_metrics_by_hand():
    """Labels 0, 0, 0, 1, 1, 2; class 3 has no image."""
    target, predicted = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 0, 1, 1, 0, 2])
    scores = torch.tensor(
        [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.3, 0.5, 0.2], [0.2, 0.6, 0.2], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8]]
    )
    nan = further_metrics(["auroc"], NONE, torch.tensor([0, 0]), 2, torch.tensor([[0.6, 0.4]] * 2))["auroc"]
    assert nan != nan  # no class stands against another
    found = further_metrics(list(METRICS), predicted, target, 4, torch.cat([scores, torch.zeros(6, 1)], 1))
    assert found["per_class"] == [pytest.approx(2 / 3), 0.5, 1.0, None]
    assert found["recall"] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert found["precision"] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert found["f1"] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert found["f1_weighted"] == pytest.approx((3 * 2 / 3 + 2 * 1 / 2 + 1) / 6)
    # agreement 4/6; by chance (3·3 + 2·2 + 1·1)/36
    assert found["cohen_kappa"] == pytest.approx((4 / 6 - 14 / 36) / (1 - 14 / 36))
    # (4·6 - 14) / sqrt((36 - 14)(36 - 14))
    assert found["matthews"] == pytest.approx(10 / 22)
    # pairs in the right order: class 0 has 8 of 9 (0.3 < 0.5), class 1 has 7 of 8 (0.4 < 0.5), class 2 all
    assert found["auroc"] == pytest.approx((8 / 9 + 7 / 8 + 1) / 3)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_an_image_without_finite_logits_is_wrong_and_of_no_class(broken: float):
    """Scikit-learn's definitions, by hand: two images right, and one of class 0 without a prediction."""
    logits, target = torch.tensor([[3.0, 1.0], [1.0, 2.0], [broken, 0.0]]), torch.tensor([0, 1, 0])
    assert has_class(logits).tolist() == [True, True, False]
    predicted = torch.tensor([0, 1, -1])
    found = further_metrics(
        ["f1", "f1_weighted", "precision", "recall", "per_class", "cohen_kappa"], predicted, target, 2
    )
    assert found == {
        "f1": pytest.approx((2 / 3 + 1) / 2), "f1_weighted": pytest.approx((2 * 2 / 3 + 1) / 3),
        "precision": pytest.approx(1), "recall": pytest.approx(3 / 4),
        "per_class": [0.5, 1.0], "cohen_kappa": pytest.approx((2 / 3 - 1 / 3) / (1 - 1 / 3)),
    }  # fmt: skip
