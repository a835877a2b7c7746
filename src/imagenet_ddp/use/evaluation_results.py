"""Compute calibration, further metrics and ReaL top-1 from the predictions of an evaluation, and the columns of
predictions.csv."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from imagenet_ddp.config.figures import NO_TEMPERATURE, UNLIKE
from imagenet_ddp.config.validators import is_mapping
from imagenet_ddp.curation.interval import without_words
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.models.calibration import calibrate
from imagenet_ddp.runs.result_files import NOT_FINITE
from imagenet_ddp.system.text import count_noun, percent
from imagenet_ddp.use.further_metrics import further_metrics


@dataclass
class Predicted:
    """The predictions for N readable images of all ranks, sorted by position in the split. k is 5, or the number of
    classes if there are fewer."""

    index: np.ndarray  # int64 (N,), position in the split
    classes: np.ndarray  # int64 (N, k), most probable first; -1 if the output is NaN or inf
    probabilities: np.ndarray  # float32 (N, k)
    losses: np.ndarray  # float32 (N,), cross entropy
    log_sums: np.ndarray  # float32 (N, 41), see models.calibration
    gaps: np.ndarray  # float32 (N,), greatest logit minus the logit of the true class
    scores: np.ndarray | None  # float32 (N, num_classes), all probabilities; None unless keep_scores is set
    loaded: np.ndarray  # int64, positions of all loaded images, including unreadable ones
    familiarity: np.ndarray | None = None  # float32 (N,), see curation/unknown.py; NaN without a reference

    def is_known(self, threshold: float) -> np.ndarray:
        """Return which images are like the training images, bool (N,). threshold: of the reference."""
        assert self.familiarity is not None
        return self.familiarity >= threshold  # False for NaN, of a net that diverged


def further_results(
    predicted: Predicted,
    targets: np.ndarray,
    classes: Sequence[str],
    metric_names: Sequence[str],
    real_labels: Sequence[set[str]] | None,
    threshold: float | None = None,
) -> dict[str, Any]:
    """Return the entries calibration and, if requested, metrics and real of evaluation.json. If outputs are NaN or
    inf, their number replaces calibration, and auroc is left out.

    targets: int64, index into `classes` for each image of the split. real_labels: names of the correct classes of each
    image. threshold: familiarity from which an image is known, for the entry known; None leaves it out.
    """
    labels, top1 = targets[predicted.index], predicted.classes[:, 0]
    found: dict[str, Any] = {}
    if without := int((top1 < 0).sum()):
        found["num_without_class"] = without
        metric_names = [name for name in metric_names if name != "auroc"]  # needs probabilities of all images
    else:
        found["calibration"] = calibrate(
            predicted.probabilities[:, 0], top1 == labels, predicted.losses, predicted.log_sums, predicted.gaps
        )
    if metric_names:
        scores = None if predicted.scores is None else torch.as_tensor(predicted.scores)
        values = further_metrics(
            metric_names, torch.as_tensor(top1), torch.as_tensor(labels), len(classes), scores=scores
        )
        found["metrics"] = {
            name: dict(zip(classes, value, strict=True)) if isinstance(value, list) else value
            for name, value in values.items()
        }
    if real_labels is not None:
        pairs = zip(predicted.index.tolist(), top1.tolist(), strict=True)
        is_right = [top >= 0 and classes[top] in real_labels[index] for index, top in pairs if real_labels[index]]
        top1_real = sum(is_right) / len(is_right) if is_right else math.nan
        found["real"] = {"top1": top1_real, "num_images": len(is_right)}
    if threshold is not None:
        is_right, is_known = top1 == labels, predicted.is_known(threshold)
        top1_known = float(is_right[is_known].mean()) if is_known.any() else math.nan
        found["known"] = {
            "num_unknown": int((~is_known).sum()), "num_images": len(labels),
            "top1": float(is_right.mean()), "top1_without_unknown": top1_known,
        }  # fmt: skip
    return found


def results_lines(results: Mapping[str, Any]) -> list[str]:
    """Return the log lines for the results of further_results."""
    lines: list[str] = []
    if calibration := results.get("calibration"):
        fitted = f"; {NO_TEMPERATURE}"
        if (temperature := calibration["temperature"]) is not None:
            fitted = f", or {percent(calibration['ece_at_temperature'])} at the best temperature ({temperature:.3f})"
        lines = [f"Calibration error {percent(calibration['ece'])}{fitted}"]
    elif "num_without_class" in results:
        lines = [
            f"For {count_noun(results['num_without_class'], 'image')} {NOT_FINITE}: counted as wrong, without a class. "
            "Calibration and auroc need finite outputs and are left out."
        ]
    for name, value in results.get("metrics", {}).items():
        if is_mapping(value):
            worst = sorted((share, each) for each, share in value.items() if share is not None)[:5]
            words = ", ".join(f"{each} {percent(share)}" for share, each in worst)
            lines.append(f"{name}: lowest {words}")
        else:
            lines.append(f"{name}: {value:.4f}")
    if "real" in results:
        lines.append(f"ReaL top-1 {percent(results['real']['top1'])} of {results['real']['num_images']} images")
    if "known" in results:
        lines.append(_known_line(**results["known"]))
    return lines


def _known_line(num_unknown: int, num_images: int, top1: float, top1_without_unknown: float) -> str:
    if not num_unknown:
        return f"None of {count_noun(num_images, 'image')} is {UNLIKE}."
    num_known = num_images - num_unknown
    right = top1_without_unknown * num_known if num_known else 0, top1 * num_images
    are = "images is" if num_unknown == 1 else "images are"
    words = without_words(right, (num_known, num_images))
    return f"{num_unknown:,} of {num_images:,} {are} {UNLIKE}: {words}"


def prediction_columns(
    predicted: Predicted,
    images: Images,
    classes: Sequence[str],
    reasons: Mapping[str, str],
    threshold: float | None = None,
) -> dict[str, list[Any]]:
    """Return the columns of the predictions file, with one row per loaded image, in order.

    images: the images of the split, whose targets are indices into `classes`. reasons: maps a path to the reason why
    the image could not be read. threshold: familiarity from which an image is known; None leaves both columns out.
    """
    loaded = predicted.loaded.tolist()
    rows = {index: row for row, index in enumerate(predicted.index.tolist())}  # without unreadable images

    def column(values: Sequence[Any]) -> list[Any]:
        return [values[rows[index]] if index in rows else None for index in loaded]

    paths = [images.path(index) for index in loaded]
    no_class = [NOT_FINITE if top < 0 else None for top in predicted.classes[:, 0].tolist()]
    columns = {
        "index": loaded,
        "path": paths,
        "label": [classes[target] for target in images.targets[predicted.loaded].tolist()],
        "prediction": [],
        "confidence": column(predicted.probabilities[:, 0].tolist()),
        "loss": column(predicted.losses.tolist()),
        "label_probability": column(np.exp(-predicted.losses).tolist()),
    }
    for rank, top in enumerate(predicted.classes.T.tolist()):
        columns[f"class_{rank + 1}"] = column([None if each < 0 else classes[each] for each in top])
        columns[f"probability_{rank + 1}"] = column(predicted.probabilities[:, rank].tolist())
    columns["prediction"] = columns["class_1"]
    if threshold is not None and predicted.familiarity is not None:
        columns["known"] = column(["yes" if each else "no" for each in predicted.is_known(threshold).tolist()])
        columns["familiarity"] = column(
            [each if math.isfinite(each) else None for each in predicted.familiarity.tolist()]
        )
    unreadable = [
        None if index in rows else reasons.get(path, "cannot be read")
        for index, path in zip(loaded, paths, strict=True)
    ]
    return {**columns, "error": [a or b for a, b in zip(unreadable, column(no_class), strict=True)]}
