"""Analyse predictions: the accuracy of each class, the confusion matrix, labels that are likely wrong, and the
calibration of the probabilities. matplotlib is imported only to draw."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from imagenet_ddp.config.figures import NO_TEMPERATURE
from imagenet_ddp.curation import wrong_labels
from imagenet_ddp.curation.interval import interval_words
from imagenet_ddp.curation.wrong_labels import LikelyWrong
from imagenet_ddp.report.predictions import Predictions
from imagenet_ddp.runs import plots
from imagenet_ddp.system.text import format_loss, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CLASSES = 50  # in a matrix that can still be read
NUM_BINS = 15
MIN_IMAGES = 5  # of a bin in the diagram; the accuracy of fewer images is mostly chance
NUM_DRAWS = 200  # of right and wrong predictions, to see what chance makes of a calibration error
LEAST_BINS = 3  # of a diagram, which would say nothing with fewer

# ---- classes -------------------------------------------------------------------------------------------------------


def confused_pairs(target: np.ndarray, prediction: np.ndarray, num_classes: int) -> np.ndarray:
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
    totals = np.bincount(target, minlength=len(names))
    right = np.bincount(target[target == prediction], minlength=len(names))
    most: dict[int, tuple[int, int]] = {}
    for true, taken_for, count in confused_pairs(target, prediction, len(names)).tolist():
        most.setdefault(true, (taken_for, count))
    rows = []
    for number, (name, label) in enumerate(zip(names, labels, strict=True)):
        other, count = most.get(number, (None, 0))
        accuracy = right[number] / totals[number] if totals[number] else None
        rows.append(ClassRow(name, label, int(totals[number]), accuracy, "" if other is None else labels[other], count))
    return rows


def confusion_matrix(target: np.ndarray, prediction: np.ndarray, num_classes: int) -> np.ndarray | None:
    """Return the confusion matrix: the number of images by true and by predicted class, int (num_classes, num_classes);
    None if there are more than MOST_CLASSES."""
    if num_classes > MOST_CLASSES:
        return None
    there = prediction >= 0
    counts = np.bincount(target[there] * num_classes + prediction[there], minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


# ---- likely wrong labels -------------------------------------------------------------------------------------------


def likely_wrong(found: Predictions) -> LikelyWrong:
    """Return the images whose prediction is a class other than their label."""
    return wrong_labels.likely_wrong(
        found.target, found.prediction, found.target_probability, found.confidence, len(found.classes)
    )


def labels_csv(
    wrong: LikelyWrong,
    found: Predictions,
    delimiter: str = "comma",
    decided: Callable[[str, str, str], str] = lambda *_: "",
) -> bytes:
    """Return the content of FILE_OF_REPORT. delimiter, decided: as for wrong_labels.list_csv."""
    more = {"confident": ["yes" if sure else "no" for sure in wrong.is_confident.tolist()]}
    return wrong_labels.list_csv(wrong, found.paths, found.classes, found.target, more, delimiter, decided)


# ---- calibration ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bin:
    """The images whose confidence is within 1 / NUM_BINS above `low`."""

    low: float
    num_images: int
    confidence: float  # mean
    accuracy: float


def calibration_bins(confidence: np.ndarray, is_right: np.ndarray) -> list[Bin]:
    """Return those of the bins of equal width that contain images. Images with a probability of NaN are left out."""
    there = np.isfinite(confidence)
    confidence, is_right = confidence[there], is_right[there]
    numbers = np.minimum((confidence * NUM_BINS).astype(int), NUM_BINS - 1)
    inside = {number: numbers == number for number in np.unique(numbers).tolist()}
    return [
        Bin(number / NUM_BINS, int(rows.sum()), float(confidence[rows].mean()), float(is_right[rows].mean()))
        for number, rows in inside.items()
    ]


def calibration_error(found: list[Bin]) -> float:
    """Return the expected calibration error (ECE): the mean of |confidence - accuracy| over the bins, weighted by their
    images."""
    total = sum(each.num_images for each in found)
    return sum(each.num_images * abs(each.confidence - each.accuracy) for each in found) / max(total, 1)


def chance_error(confidence: np.ndarray) -> float:
    """Return the calibration error that one of 20 nets exceeds by chance which are exactly as sure as they are right.
    confidence: of each image."""
    confidence, draw = confidence[np.isfinite(confidence)], np.random.default_rng(0).random
    drawn = (calibration_bins(confidence, draw(len(confidence)) < confidence) for _ in range(NUM_DRAWS))
    return float(np.quantile([calibration_error(bins) for bins in drawn], 0.95))


def calibration_figures(found: Predictions, bins: list[Bin]) -> dict[str, str | bool]:
    """Return what the page says of the calibration, "" for a figure that is not known, or is printed as before
    the best temperature. is_chance: the error may be by chance alone. bins: result of calibration_bins."""
    measured: dict[str, float | None] = found.evaluation.get("calibration", {})
    ece, chance, temperature = calibration_error(bins), chance_error(found.confidence), measured.get("temperature")
    confidence = found.confidence[np.isfinite(found.confidence)]

    def other(key: str, before: float | None, words: Callable[[float], str]) -> str:
        value = measured.get(key)
        if value is None or before is None or words(value) == words(before):
            return ""
        return words(value)

    nll = measured.get("nll")
    return {
        "is_chance": ece <= chance,
        "ece": percent(ece, 1),
        "chance": percent(chance, 1),
        "temperature": "" if temperature is None else f"{temperature:.2f}",
        "no_temperature": NO_TEMPERATURE if measured.get("temperature", 1) is None else "",
        "ece_then": other("ece_at_temperature", ece, lambda value: percent(value, 1)),
        "loss": "" if nll is None else format_loss(nll),
        "loss_then": other("nll_at_temperature", nll, format_loss),
        "confidence": percent(float(confidence.mean()), 0) if len(confidence) else "",
        "right": interval_words(int(found.is_right.sum()), len(found)),
    }


def fill_diagram(found: list[Bin]) -> bool:
    """Return whether the images are enough for a reliability diagram."""
    return sum(each.num_images >= MIN_IMAGES for each in found) >= LEAST_BINS


def calibration_figure(found: list[Bin], scheme: str = "light") -> "Figure":
    """Draw the reliability diagram, without the bins that have too few images. scheme: light or dark."""
    from matplotlib.ticker import PercentFormatter

    found = [each for each in found if each.num_images >= MIN_IMAGES]
    lows, accuracies = [each.low for each in found], [each.accuracy for each in found]
    with plots.colors(scheme):
        figure = plots.new_figure(6, 4.5, "Accuracy by probability", f"in bins of at least {MIN_IMAGES} images")
        axes = figure.subplots()
        color = plots.LINES[scheme][0]
        axes.bar(lows, accuracies, 1 / NUM_BINS, align="edge", color=color, alpha=0.2)
        axes.plot([0, 1], [0, 1], "--", color="#9AA3AF", label="perfectly calibrated")
        axes.plot([each.confidence for each in found], accuracies, marker="o", markersize=3, color=color,
                  label="this run")  # fmt: skip
        axes.set(xlabel="probability of the prediction", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    return figure
