"""Find labels that are likely wrong, by confident learning (Northcutt et al. 2021, JAIR 70, 1373)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from imagenet_ddp.system.table_files import table_bytes

FILE, FILE_OF_REPORT = "wrong_labels.csv", "likely_wrong_labels.csv"
# of a list, before further ones. A person writes a decision into the last column, "decision": KEEP, MOVE (to the
# suggested class), REMOVE (from the images) or the name of another class
COLUMNS = ("path", "label", "suggested", "score")
KEEP, MOVE, REMOVE = "keep", "move", "remove"


@dataclass(frozen=True)
class LikelyWrong:
    """Labels that are likely wrong. rows: positions of the images, most likely wrong label first. suggested: int64, the
    class that each is taken for. score: the probability of the label, which cleanlab calls its self-confidence; 0 means
    certainly wrong. Of 5 % swapped labels, it puts as many or more in front than the normalised margin, (1 + p(label) -
    p(suggested)) / 2: 79 instead of 60 % in the first 10 % where every third prediction is wrong. is_confident: bool,
    whether the suggested class is at least as probable as on average for the images that have it as their label."""

    rows: np.ndarray
    suggested: np.ndarray
    score: np.ndarray
    is_confident: np.ndarray

    def with_last(self, is_last: np.ndarray) -> "LikelyWrong":
        """Return the same images, some of them last. is_last: bool, of all images."""
        order = np.argsort(is_last[self.rows], kind="stable")
        return LikelyWrong(self.rows[order], self.suggested[order], self.score[order], self.is_confident[order])


def is_keep(text: str, label: str) -> bool:
    """Return whether a decision is to keep the label of an image."""
    return text.casefold() == KEEP or text == label != ""


def thresholds(
    targets: np.ndarray, prediction: np.ndarray, target_probability: np.ndarray, num_classes: int
) -> np.ndarray:
    """Return the mean probability of each class over the images with that label. It is infinite for a class without
    images, so that the class is never suggested. Arguments as in likely_wrong."""
    there = prediction >= 0
    sums = np.bincount(targets[there], target_probability[there], num_classes)
    counts = np.bincount(targets[there], minlength=num_classes)
    return np.divide(sums, counts, out=np.full(num_classes, np.inf), where=counts > 0)


def likely_wrong(
    targets: np.ndarray,
    prediction: np.ndarray,
    target_probability: np.ndarray,
    confidence: np.ndarray,
    num_classes: int,
) -> LikelyWrong:
    """Return the images whose prediction is a class other than their label.

    targets, prediction: int64 (N,); -1: no prediction. target_probability, confidence: (N,), of the label and of the
    prediction, by a net or a regression that did not see the image.
    """
    rows = np.flatnonzero((prediction != targets) & (prediction >= 0))
    rows = rows[np.argsort(target_probability[rows], kind="stable")]
    limits = thresholds(targets, prediction, target_probability, num_classes)
    return LikelyWrong(rows, prediction[rows], target_probability[rows], confidence[rows] >= limits[prediction[rows]])


def of_probabilities(targets: np.ndarray, probabilities: np.ndarray) -> LikelyWrong:
    """Return likely_wrong of probabilities (N, classes) by regressions that did not see the image."""
    label, confidence = probabilities[np.arange(len(targets)), targets], probabilities.max(axis=1)
    return likely_wrong(targets, probabilities.argmax(axis=1), label, confidence, probabilities.shape[1])


def list_csv(
    found: LikelyWrong,
    paths: list[str],
    classes: list[str],
    targets: np.ndarray,
    more: Mapping[str, list[str]],
    delimiter: str = "comma",
    decided: Callable[[str, str, str], str] = lambda *_: "",
) -> bytes:
    """Return the content of a list for decisions. paths, targets: of all images. more: name of a further column -> its
    cells. delimiter: value of csv_delimiter. decided: returns what a person has decided about a path, label and
    suggested class of an earlier list."""
    rows = list[tuple[str, ...]]()
    columns = found.rows.tolist(), found.suggested.tolist(), found.score.tolist()
    for place, (row, suggested, score) in enumerate(zip(*columns, strict=True)):
        what = paths[row], classes[int(targets[row])], classes[suggested]
        rows.append((*what, f"{score:.6f}", *(cells[place] for cells in more.values()), decided(*what)))
    return table_bytes((*COLUMNS, *more, "decision"), rows, delimiter)
