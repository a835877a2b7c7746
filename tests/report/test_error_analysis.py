"""Counts of confusions, likely wrong labels, and the bins of the reliability diagram.

The results of cleanlab are in a file, because it requires SciPy, which torchmetrics then imports in every process. To
write that file again: PYTHONPATH=tests uv run --group dev --with cleanlab python tests/report/test_error_analysis.py
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_predictions import random_probabilities, write_evaluation

from imagenet_ddp.curation import wrong_labels
from imagenet_ddp.report.error_analysis import (
    calibration_bins,
    calibration_error,
    class_rows,
    confused_pairs,
    confusion_matrix,
    likely_wrong,
)
from imagenet_ddp.report.predictions import Predictions, read

CLASSES = ["a", "b", "c", "d", "e"]
SWAPPED = np.arange(0, 600, 30)
THEIRS = Path(__file__).with_name("cleanlab_2_9.json")


def thresholds(found: Predictions) -> np.ndarray:
    return wrong_labels.thresholds(found.target, found.prediction, found.target_probability, len(found.classes))


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Predictions, np.ndarray]:
    return make_noisy(tmp_path_factory.mktemp("e"))


def make_noisy(folder: Path) -> tuple[Predictions, np.ndarray]:
    """600 images of 5 classes, 20 of them with another's label; and the whole probabilities."""
    true = np.arange(600) % 5
    probabilities = random_probabilities(true, 5)
    given = true.copy()
    given[SWAPPED] = (true[SWAPPED] + 1 + np.arange(20) % 4) % 5
    found = read(write_evaluation(folder, probabilities, given, CLASSES))
    return found, probabilities.astype(np.float32).astype(np.float64)


def test_the_ranking_is_that_of_cleanlab(noisy: tuple[Predictions, np.ndarray]):
    found, probabilities = noisy
    theirs = {name: np.array(values) for name, values in json.loads(THEIRS.read_text()).items()}
    np.testing.assert_allclose(thresholds(found), theirs["thresholds"], rtol=1e-5)
    ours = likely_wrong(found)
    assert ours.rows.tolist() == theirs["rows"].tolist()
    confident = probabilities.max(axis=1) >= theirs["thresholds"][probabilities.argmax(axis=1)]
    assert ours.is_confident.tolist() == confident[theirs["rows"]].tolist()
    assert 20 < sum(ours.is_confident) < len(theirs["rows"])
    np.testing.assert_allclose(ours.score, theirs["scores"], rtol=1e-4)


def test_a_class_without_images_is_never_suggested(tmp_path: Path):
    probabilities = np.array([[0.1, 0.1, 0.8], [0.9, 0.05, 0.05], [0.2, 0.7, 0.1], [0.6, 0.3, 0.1]])
    found = read(write_evaluation(tmp_path / "e", probabilities, np.array([0, 0, 1, 1]), ["a", "b", "c"]))
    assert thresholds(found)[2] == np.inf
    ours = likely_wrong(found)
    assert sorted(ours.rows[ours.is_confident].tolist()) == [3], "0.6 of a is above a's mean of 0.5"


LABELS = ["cat", "dog", "owl", "eel"]
TARGET = np.array([0, 0, 0, 1, 1, 2, 2])
PREDICTION = np.array([0, 1, 1, 1, 0, 0, 2])


def test_pairs_and_rows():
    assert confused_pairs(TARGET, PREDICTION, 4).tolist() == [[0, 1, 2], [1, 0, 1], [2, 0, 1]]
    rows = class_rows(TARGET, PREDICTION, ["n1", "n2", "n3", "n4"], LABELS)
    assert [(row.name, row.num_images, row.confused_with, row.num_confused) for row in rows] == [
        ("n1", 3, "dog", 2), ("n2", 2, "cat", 1), ("n3", 2, "cat", 1), ("n4", 0, "", 0),
    ]  # fmt: skip
    assert [row.accuracy for row in rows] == [1 / 3, 0.5, 0.5, None]


def test_the_matrix_of_few_classes():
    found = confusion_matrix(TARGET, PREDICTION, 4)
    assert found is not None
    assert found.tolist() == [[1, 2, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]


def test_bins_and_error():
    confidence = np.array([0.05, 0.95, 1.0, 0.94])
    is_right = np.array([False, True, True, False])
    found = calibration_bins(confidence, is_right)
    assert [(each.low, each.num_images) for each in found] == [(0, 1), (14 / 15, 3)]
    assert found[1].accuracy == pytest.approx(2 / 3)
    assert calibration_error(found) == pytest.approx((0.05 + abs(2.89 - 2)) / 4)


if __name__ == "__main__":
    from cleanlab.count import get_confident_thresholds  # pyright: ignore[reportMissingImports]
    from cleanlab.filter import find_label_issues  # pyright: ignore[reportMissingImports]
    from cleanlab.rank import get_label_quality_scores  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        found, p = make_noisy(Path(folder) / "e")
        target = found.target
    rows = find_label_issues(target, p, filter_by="predicted_neq_given", return_indices_ranked_by="self_confidence")
    scores = get_label_quality_scores(target, p, method="self_confidence")[rows]
    limits = get_confident_thresholds(target, p)
    content = {"thresholds": limits.tolist(), "rows": rows.tolist(), "scores": scores.tolist()}
    THEIRS.write_text(json.dumps(content) + "\n")
