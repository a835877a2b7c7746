"""Compute the accuracy of each class, count the confusions between classes, and group classes that are confused with
each other."""

from dataclasses import dataclass

import numpy as np

MOST_CLASSES = 50  # in a matrix; if there are more, they are grouped
MOST_GROUPS = 20
MOST_GROUPED = 3000  # the matrix of more classes would not fit into memory


@dataclass(frozen=True)
class Matrix:
    """A confusion matrix. names: short names of the rows (true classes) and columns (predicted classes). titles: their
    long names. counts: int (len(names), len(names)), numbers of images."""

    names: list[str]
    titles: list[str]
    counts: np.ndarray

    @property
    def shares(self) -> np.ndarray:
        """Return each count as a share of the images of its row; 0 if the row has no images."""
        return self.counts / self.counts.sum(axis=1, keepdims=True).clip(min=1)


def pairs(target: np.ndarray, prediction: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the confused pairs, most frequent first, int64 (number of pairs, 3): true class, predicted class,
    images."""
    wrong = (target != prediction) & (prediction >= 0)  # -1 is no class
    codes, counts = np.unique(target[wrong] * num_classes + prediction[wrong], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return np.stack([codes[order] // num_classes, codes[order] % num_classes, counts[order]], axis=1)


@dataclass(frozen=True)
class ClassRow:
    name: str
    label: str
    num_images: int
    accuracy: float | None  # None: no image of this class
    confused_with: str  # label of the class most often predicted instead; "" if all predictions are right
    num_confused: int


def class_rows(target: np.ndarray, prediction: np.ndarray, names: list[str], labels: list[str]) -> list[ClassRow]:
    """Return one row for each class."""
    totals = np.bincount(target, minlength=len(names))
    right = np.bincount(target[target == prediction], minlength=len(names))
    most: dict[int, tuple[int, int]] = {}
    for true, taken_for, count in pairs(target, prediction, len(names)).tolist():
        most.setdefault(true, (taken_for, count))
    rows = []
    for number, (name, label) in enumerate(zip(names, labels, strict=True)):
        other, count = most.get(number, (None, 0))
        accuracy = right[number] / totals[number] if totals[number] else None
        rows.append(ClassRow(name, label, int(totals[number]), accuracy, "" if other is None else labels[other], count))
    return rows


def matrix(target: np.ndarray, prediction: np.ndarray, labels: list[str]) -> Matrix | None:
    """Return the confusion matrix of the classes, or of groups if there are more than MOST_CLASSES. Returns None if
    there are more than MOST_GROUPED classes."""
    size = len(labels)
    if size > MOST_GROUPED:
        return None
    there = prediction >= 0
    target, prediction = target[there], prediction[there]
    counts = np.bincount(target * size + prediction, minlength=size * size).reshape(size, size)
    if size <= MOST_CLASSES:
        return Matrix(labels, labels, counts)
    groups = group_classes(counts)
    of_class = np.empty(size, dtype=np.int64)
    for number, members in enumerate(groups):
        of_class[members] = number
    num = len(groups)
    grouped = np.bincount(of_class[target] * num + of_class[prediction], minlength=num * num).reshape(num, num)
    totals = counts.sum(axis=1)
    names, titles = [], []
    for members in groups:
        largest = [labels[member] for member in members[np.argsort(-totals[members], kind="stable")]]
        more = f" + {len(largest) - 2}" if len(largest) > 2 else ""
        names.append(", ".join(name.split(",")[0] for name in largest[:2]) + more)
        titles.append(", ".join(name.split(",")[0] for name in largest))
    return Matrix(names, titles, grouped)


def group_classes(counts: np.ndarray, at_most: int = MOST_GROUPS) -> list[np.ndarray]:
    """Return the members of each group. Classes that are confused with each other are in the same group, and similar
    groups are adjacent.

    Repeatedly divides the largest group in two along the second eigenvector of its normalised confusion matrix (Shi and
    Malik 2000), at the cut with the fewest confusions relative to the sizes of both parts.
    """
    affinity = (counts + counts.T).astype(np.float64)
    np.fill_diagonal(affinity, 0)
    affinity += 1e-3  # keeps classes that are never confused connected
    groups = [np.arange(len(counts))]
    while len(groups) < at_most:
        largest = max(range(len(groups)), key=lambda number: len(groups[number]))
        if len(groups[largest]) < 4:
            break
        groups[largest : largest + 1] = _divide(groups[largest], affinity)
    return groups


def _divide(members: np.ndarray, affinity: np.ndarray) -> list[np.ndarray]:
    own = affinity[np.ix_(members, members)]
    scale = 1 / np.sqrt(own.sum(axis=1))
    _, vectors = np.linalg.eigh(own * scale[:, None] * scale)
    order = np.argsort(vectors[:, -2] * scale, kind="stable")
    sums = own[np.ix_(order, order)].cumsum(axis=0).cumsum(axis=1)
    places = np.arange(len(members) // 4, 3 * len(members) // 4 + 1).clip(1, len(members) - 1)
    cut = sums[places - 1, -1] - sums[places - 1, places - 1]
    place = places[np.argmin(cut / (places * (len(members) - places)))]
    return [members[order[:place]], members[order[place:]]]
