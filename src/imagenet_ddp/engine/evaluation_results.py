"""Collect the predictions for all validation images from all ranks, and compute from them the results that an
evaluation reports besides top-1, top-5 and loss."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
from torch import Tensor, distributed

from imagenet_ddp.config.validators import is_mapping
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.models.calibration import calibrate, log_sums
from imagenet_ddp.models.metrics import further_metrics, has_class
from imagenet_ddp.runs.summary import NOT_FINITE
from imagenet_ddp.system.text import count_noun, percent


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


class Predictions(L.Callback):
    """Collect the outputs of ImageClassifier.validation_step. After the validation, `result` contains the predictions
    of all ranks on rank 0, and is None on other ranks.

    keep_scores: also keep all probabilities of each image. The collected tensors are small and stay on the device until
    the validation ends, so no batch waits for the device.
    """

    def __init__(self, *, keep_scores: bool = False) -> None:
        self._keeps_scores = keep_scores
        self.result: Predicted | None = None
        self._batches: list[tuple[Tensor, ...]] = []
        self._loaded: list[Tensor] = []

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.result, self._batches, self._loaded = None, [], []

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._loaded.append(batch["index"])
        if outputs is None:  # no image of this batch counts on this rank
            return
        logits, losses, counted = outputs["logits"], outputs["losses"], batch["num_counted"]
        # topk may order equal logits differently from the argmax that val/top1 is computed with
        values, classes = logits.sort(dim=1, descending=True, stable=True)
        values, classes = values[:, : pl_module.top_k], classes[:, : pl_module.top_k].clone()
        classes.masked_fill_(~has_class(logits)[:, None], -1)  # no wait for the device
        probabilities = (values - logits.logsumexp(1, keepdim=True)).exp()
        gaps = values[:, 0] - logits.gather(1, batch["target"][:counted, None])[:, 0]
        found = [batch["index"][:counted], classes, probabilities, losses, log_sums(logits), gaps]
        found += [logits.softmax(1)] if self._keeps_scores else []
        self._batches.append(tuple(each.float() if each.is_floating_point() else each for each in found))

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        columns = [torch.cat(column).cpu().numpy() for column in zip(*self._batches, strict=True)]
        mine = columns, torch.cat(self._loaded).cpu().numpy()
        self._batches, self._loaded = [], []
        ranks: list[Any] | None = [mine]
        if trainer.world_size > 1:
            ranks = [None] * trainer.world_size if trainer.is_global_zero else None
            distributed.gather_object(mine, ranks)
        if ranks is not None:
            self.result = _merge([columns for columns, _ in ranks if columns], [loaded for _, loaded in ranks])


def _merge(parts: list[list[np.ndarray]], loaded: list[np.ndarray]) -> Predicted:
    """Merge the predictions of the ranks, and sort them by position. parts: columns of each rank that has any, at least
    one, in the order of Predicted's fields, with or without scores. loaded: positions loaded by each rank."""
    columns = [np.concatenate(each) for each in zip(*parts, strict=True)]
    order = columns[0].argsort()
    index, classes, probabilities, losses, sums, gaps, *scores = (column[order] for column in columns)
    seen = np.unique(np.concatenate(loaded))
    return Predicted(index, classes, probabilities, losses, sums, gaps, scores[0] if scores else None, seen)


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
        if is_mapping(value):
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
