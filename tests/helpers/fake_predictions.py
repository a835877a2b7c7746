"""Make evaluation folders like those of `evaluate`, without a net."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from imagenet_ddp.runs.result_files import write_predictions


def random_probabilities(target: np.ndarray, num_classes: int, seed: int = 0, strength: float = 2.5) -> np.ndarray:
    """Draw probabilities, float64 (N, classes), that favour the true class, so that most predictions are right."""
    logits = np.random.default_rng(seed).normal(size=(len(target), num_classes))
    logits[np.arange(len(target)), target] += strength
    exponents = np.exp(1.5 * logits)
    return exponents / exponents.sum(axis=1, keepdims=True)


def write_evaluation(
    folder: Path,
    probabilities: np.ndarray,
    target: np.ndarray,
    classes: Sequence[str],
    *,
    paths: Sequence[str] | None = None,
    unreadable: Sequence[str] = (),
    data: dict[str, Any] | None = None,
    **more: Any,
) -> Path:
    """Write an evaluation folder, and return it.

    probabilities: (N, classes). unreadable: paths of additional images that could not be read. more: additional
    fields of evaluation.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    num_images, num_ranks = len(target), min(5, len(classes))
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :num_ranks]
    rows = np.arange(num_images)
    own = probabilities[rows, target]
    gap = [None] * len(unreadable)

    def names(positions: np.ndarray) -> list[Any]:
        return [*(classes[position] for position in positions), *gap]

    def numbers(values: np.ndarray) -> list[float | None]:
        return [*values.tolist(), *gap]

    columns: dict[str, list[Any]] = {
        "index": [*range(num_images + len(unreadable))],
        "path": [*(paths or [f"val/{classes[each]}/{row}.jpg" for row, each in enumerate(target)]), *unreadable],
        "label": [*(classes[each] for each in target), *[classes[0]] * len(unreadable)],
        "prediction": names(order[:, 0]),
        "confidence": numbers(probabilities[rows, order[:, 0]]),
        "loss": numbers(-np.log(own)),
        "label_probability": numbers(own),
    }
    for rank in range(num_ranks):
        columns[f"class_{rank + 1}"] = names(order[:, rank])
        columns[f"probability_{rank + 1}"] = numbers(probabilities[rows, order[:, rank]])
    columns["error"] = [*[None] * num_images, *["it is no image"] * len(unreadable)]
    write_predictions(folder / "predictions.csv", columns)
    evaluation = {
        "val/top1": float((order[:, 0] == target).mean()), "num_val_images": num_images,
        "num_val_images_unreadable": len(unreadable), "num_classes": len(classes),
        "classes": list(classes), "labels": list(classes), "predictions": "predictions.csv",
        "checkpoint": str(folder / "best.ckpt"), "command": "python -m imagenet_ddp.evaluate checkpoint=best.ckpt",
        "calibration": {"ece": 0.05, "temperature": 1.5, "ece_at_temperature": 0.01, "nll": 0.9,
                        "nll_at_temperature": 0.8}, **more,
    }  # fmt: skip
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    config = {"seed": 0, "model": {"name": "resnet18"}, "data": data or {"name": "imagefolder", "root": "nowhere"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder
