"""Compute the accuracy of each class, and the class it is most often mistaken for."""

from dataclasses import dataclass

import numpy as np

from imagenet_ddp.report.page.confusion import pairs


@dataclass(frozen=True)
class ClassRow:
    name: str
    label: str
    num_images: int
    accuracy: float | None  # None: no image of this class
    confused_with: str  # label of the class most often predicted instead; "" where all are right
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
