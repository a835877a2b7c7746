"""Compute the results that an evaluation reports besides top-1, top-5 and loss from the predictions of all ranks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from imagenet_ddp.callbacks.prediction_collector import Predicted
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.models.calibration import calibrate
from imagenet_ddp.models.metrics import further_metrics
from imagenet_ddp.runs.predictions_file import NOT_FINITE
from imagenet_ddp.system.text import count_noun, percent


def further_results(
    predicted: Predicted,
    targets: np.ndarray,
    classes: Sequence[str],
    metric_names: Sequence[str],
    real_labels: Sequence[set[str]] | None,
) -> dict[str, Any]:
    """Return the entries calibration and, if requested, metrics and real of evaluation.json. If outputs are NaN or
    inf, their number replaces calibration, and auroc is left out.

    targets: int64, index into `classes` for each image of the split. real_labels: names of the correct classes of each
    image.
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
        scores = None if predicted.scores is None else torch.from_numpy(predicted.scores)
        values = further_metrics(
            metric_names, torch.from_numpy(top1), torch.from_numpy(labels), len(classes), scores=scores
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
    return found


def results_lines(results: Mapping[str, Any]) -> list[str]:
    """Return the log lines for the results of further_results."""
    if calibration := results.get("calibration"):
        ece, then = percent(calibration["ece"]), percent(calibration["ece_at_temperature"])
        lines = [f"Calibration error {ece}, or {then} at the best temperature ({calibration['temperature']:.3f})"]
    else:
        lines = [
            f"For {count_noun(results['num_without_class'], 'image')} {NOT_FINITE}: counted as wrong, without a class. "
            "Calibration and auroc need finite outputs and are left out."
        ]
    for name, value in results.get("metrics", {}).items():
        if isinstance(value, dict):
            worst = sorted((share, each) for each, share in value.items() if share is not None)[:5]
            words = ", ".join(f"{each} {percent(share)}" for share, each in worst)
            lines.append(f"{name}: lowest {words}")
        else:
            lines.append(f"{name}: {value:.4f}")
    if "real" in results:
        lines.append(f"ReaL top-1 {percent(results['real']['top1'])} of {results['real']['num_images']} images")
    return lines


def prediction_columns(
    predicted: Predicted, images: Images, classes: Sequence[str], reasons: Mapping[str, str]
) -> dict[str, list[Any]]:
    """Return the columns of the predictions file, with one row per loaded image, in order.

    images: the images of the split, whose targets are indices into `classes`. reasons: maps a path to the reason why
    the image could not be read.
    """
    index = predicted.loaded
    rows: list[int | None] = [None] * len(index)  # row of each loaded image in predicted; None if it is unreadable
    for row, place in enumerate(np.searchsorted(index, predicted.index).tolist()):
        rows[place] = row

    def column(values: np.ndarray) -> list[Any]:
        found = values.tolist()
        return [None if row is None else found[row] for row in rows]

    paths = [images.path(each) for each in index.tolist()]
    tops = [
        [None if each is None or each < 0 else classes[each] for each in column(top)] for top in predicted.classes.T
    ]
    probabilities = [column(each) for each in predicted.probabilities.T]
    errors = [
        reasons.get(path, "cannot be read") if row is None else NOT_FINITE if predicted.classes[row, 0] < 0 else None
        for path, row in zip(paths, rows, strict=True)
    ]
    columns = {
        "index": index.tolist(),
        "path": paths,
        "label": [classes[target] for target in images.targets[index].tolist()],
        "prediction": tops[0],
        "confidence": probabilities[0],
        "loss": column(predicted.losses),
        "label_probability": column(np.exp(-predicted.losses)),
    }
    for rank, (top, probability) in enumerate(zip(tops, probabilities, strict=True), 1):
        columns |= {f"class_{rank}": top, f"probability_{rank}": probability}
    return {**columns, "error": errors}
