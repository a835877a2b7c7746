"""Collect the predictions of a validation for each image, from all ranks."""

from dataclasses import dataclass
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
from torch import Tensor, distributed

from imagenet_ddp.models.calibration import log_sums


@dataclass
class Predicted:
    """The readable images of one rank, or of all, by position; k is 5, or the number of classes if there are fewer."""

    index: np.ndarray  # int64 (N,), position in the split
    classes: np.ndarray  # int64 (N, k), most probable first
    probabilities: np.ndarray  # float32 (N, k)
    losses: np.ndarray  # float32 (N,), cross entropy
    log_sums: np.ndarray  # float32 (N, 41), of models.calibration
    gaps: np.ndarray  # float32 (N,), greatest logit - that of the true class
    scores: np.ndarray | None  # float32 (N, num_classes), all probabilities, where they are wanted
    loaded: np.ndarray  # int64, positions that a loader has taken, the unreadable ones among them


class Predictions(L.Callback):
    """Collect the outputs of ImageClassifier.validation_step. After the validation, `result` has those of all ranks on
    rank 0, and is None on the others.

    Small tensors stay on the device until the validation ends, so no batch waits for the device.
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
        if outputs is None:  # no image of this rank counts
            return
        logits, losses, counted = outputs["logits"], outputs["losses"], batch["num_counted"]
        # not topk, which may order equal logits otherwise than the argmax that val/top1 counts
        values, classes = logits.sort(dim=1, descending=True, stable=True)
        values, classes = values[:, : pl_module.top_k], classes[:, : pl_module.top_k].clone()
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
    """Sort the images of all ranks that have any (at least one rank has). parts: in the order of Predicted's fields,
    with or without scores."""
    columns = [np.concatenate(each) for each in zip(*parts, strict=True)]
    order = columns[0].argsort()
    index, classes, probabilities, losses, sums, gaps, *scores = (column[order] for column in columns)
    seen = np.unique(np.concatenate(loaded))
    return Predicted(index, classes, probabilities, losses, sums, gaps, scores[0] if scores else None, seen)
