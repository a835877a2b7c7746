"""Likely wrong labels, compared with cleanlab's."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_predictions import random_probabilities, write_evaluation

from imagenet_ddp.report.page.evaluation import Predictions, read
from imagenet_ddp.report.page.label_errors import likely_wrong, thresholds

CLASSES = ["a", "b", "c", "d", "e"]
SWAPPED = np.arange(0, 600, 30)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Predictions, np.ndarray]:
    """600 images of 5 classes, 20 of them with another's label; and the whole probabilities."""
    true = np.arange(600) % 5
    probabilities = random_probabilities(true, 5)
    given = true.copy()
    given[SWAPPED] = (true[SWAPPED] + 1 + np.arange(20) % 4) % 5
    return read(write_evaluation(tmp_path_factory.mktemp("e"), probabilities, given, CLASSES)), probabilities


def test_the_ranking_is_that_of_cleanlab(noisy: tuple[Predictions, np.ndarray]):
    from cleanlab.count import get_confident_thresholds
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    found, probabilities = noisy
    probabilities = probabilities.astype(np.float32).astype(np.float64)
    theirs = find_label_issues(
        found.target, probabilities, filter_by="predicted_neq_given", return_indices_ranked_by="normalized_margin"
    )
    limits = get_confident_thresholds(found.target, probabilities)
    np.testing.assert_allclose(thresholds(found), limits, rtol=1e-5)
    ours = likely_wrong(found)
    assert ours.rows.tolist() == theirs.tolist()
    confident = probabilities.max(axis=1) >= limits[probabilities.argmax(axis=1)]
    assert ours.is_confident.tolist() == confident[theirs].tolist()
    assert 20 < sum(ours.is_confident) < len(theirs)
    scores = get_label_quality_scores(found.target, probabilities, method="normalized_margin")
    np.testing.assert_allclose(ours.score, scores[ours.rows], rtol=1e-4)


def test_swapped_labels_come_first(noisy: tuple[Predictions, np.ndarray]):
    ours = likely_wrong(noisy[0])
    assert len(set(ours.rows[:20].tolist()) & set(SWAPPED.tolist())) >= 15


def test_the_file(noisy: tuple[Predictions, np.ndarray]):
    found, _ = noisy
    ours = likely_wrong(found)
    rows = list(csv.DictReader(io.StringIO(ours.as_csv(found).decode())))
    assert len(rows) == len(ours.rows)
    first = ours.rows[0]
    assert rows[0]["path"] == found.paths[first]
    assert (rows[0]["label"], rows[0]["suggested"]) == (CLASSES[found.target[first]], CLASSES[found.prediction[first]])
    assert [float(row["score"]) for row in rows] == sorted(float(row["score"]) for row in rows)


def test_a_class_without_images_is_never_suggested(tmp_path: Path):
    probabilities = np.array([[0.1, 0.1, 0.8], [0.9, 0.05, 0.05], [0.2, 0.7, 0.1], [0.6, 0.3, 0.1]])
    found = read(write_evaluation(tmp_path / "e", probabilities, np.array([0, 0, 1, 1]), ["a", "b", "c"]))
    assert thresholds(found)[2] == np.inf
    ours = likely_wrong(found)
    assert sorted(ours.rows[ours.is_confident].tolist()) == [3], "0.6 of a is above a's mean of 0.5"
