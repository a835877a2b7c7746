"""Find labels that are likely wrong, by confident learning (Northcutt et al. 2021, JAIR 70, 1373)."""

from dataclasses import dataclass

import numpy as np

from imagenet_ddp.report.page.evaluation import Predictions
from imagenet_ddp.system.csv_file import csv_bytes

FILE = "likely_wrong_labels.csv"
HEADER = ("path", "label", "suggested", "score", "confident")


@dataclass(frozen=True)
class LikelyWrong:
    """Labels that are likely wrong. The suggested label of an image is its prediction. rows: positions in the
    predictions, most likely wrong label first. score: float64, (1 + p(label) - p(suggested)) / 2 for each row, which is
    cleanlab's normalised margin; 0 means certainly wrong. is_confident: bool, whether the suggested label is at least
    as probable as on average for the images that have it as their label."""

    rows: np.ndarray
    score: np.ndarray
    is_confident: np.ndarray

    def as_csv(self, found: Predictions) -> bytes:
        names = found.classes
        return csv_bytes(HEADER, [
            (found.paths[row], names[found.target[row]], names[found.prediction[row]], f"{score:.6f}",
             "yes" if sure else "no")
            for row, score, sure in zip(self.rows.tolist(), self.score.tolist(), self.is_confident, strict=True)
        ])  # fmt: skip


def thresholds(found: Predictions) -> np.ndarray:
    """Return the mean probability of each class over the images with that label. It is infinite for a class without
    images, so that the class is never suggested."""
    size = len(found.classes)
    there = found.prediction >= 0
    sums = np.bincount(found.target[there], found.target_probability[there], size)
    counts = np.bincount(found.target[there], minlength=size)
    return np.divide(sums, counts, out=np.full(size, np.inf), where=counts > 0)


def likely_wrong(found: Predictions) -> LikelyWrong:
    """Return the images whose prediction is a class other than their label."""
    rows = np.flatnonzero(~found.is_right & (found.prediction >= 0))
    score = (1 + found.target_probability[rows] - found.confidence[rows]) / 2
    rows, score = rows[order := np.argsort(score, kind="stable")], score[order]
    return LikelyWrong(rows, score, found.confidence[rows] >= thresholds(found)[found.prediction[rows]])
