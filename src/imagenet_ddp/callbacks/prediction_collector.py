"""Collect the predictions for all validation images from all ranks."""

from dataclasses import dataclass
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
from torch import Tensor, distributed

from imagenet_ddp.models.calibration import log_sums
from imagenet_ddp.models.metrics import has_class


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
