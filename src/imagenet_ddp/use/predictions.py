"""Collect the predictions of a validation, of all ranks, in the order of the images."""

from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
from torch import Tensor, nn

from imagenet_ddp.curation.unknown import Familiarity, Reference
from imagenet_ddp.models.calibration import log_sums
from imagenet_ddp.models.task import has_class
from imagenet_ddp.strategies.process_group import gather_on_first
from imagenet_ddp.use.evaluation_results import Predicted


class Predictions(L.Callback):
    """Collect the outputs of ImageClassifier.validation_step. After the validation, `result` contains the predictions
    of all ranks on rank 0, and is None on other ranks.

    reference, layer: compute the familiarity of each image from what this layer of the net receives. keep_scores: also
    keep all probabilities of each image. The collected tensors are small and stay on the device until the validation
    ends, so no batch waits for the device.
    """

    def __init__(
        self, reference: Reference | None = None, layer: nn.Module | None = None, *, keep_scores: bool = False
    ) -> None:
        self._reference, self._layer, self._keeps_scores = reference, layer, keep_scores
        self._familiarity: Familiarity | None = None
        self._input: Tensor | None = None  # no list, for each length of which a net would be compiled
        self._hook: Any = None
        self.result: Predicted | None = None
        self._batches: list[tuple[Tensor, ...]] = []
        self._loaded: list[Tensor] = []

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.result, self._batches, self._loaded = None, [], []
        if self._reference is not None and self._layer is not None:
            self._familiarity = Familiarity(self._reference).to(pl_module.device)
            self._hook = self._layer.register_forward_pre_hook(self._keep)

    def _keep(self, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        self._input = given[0].detach()

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._loaded.append(batch["index"])
        features, self._input = self._input, None  # the last of several views is the image as it is
        if outputs is None:  # no image of this batch counts on this rank
            return
        logits, losses, counted = outputs["logits"], outputs["losses"], batch["num_counted"]
        # the order of task.places_of, by which val/top1 and val/top5 are computed
        values, classes = logits.sort(dim=1, descending=True, stable=True)
        values, classes = values[:, : pl_module.task.top_k], classes[:, : pl_module.task.top_k].clone()
        classes.masked_fill_(~has_class(logits)[:, None], -1)  # no wait for the device
        probabilities = (values - logits.logsumexp(1, keepdim=True)).exp()
        gaps = values[:, 0] - logits.gather(1, batch["target"][:counted, None])[:, 0]
        scores = torch.full_like(losses, torch.nan)
        if features is not None and self._familiarity is not None:
            scores = self._familiarity(features[:counted])
        found = [batch["index"][:counted], classes, probabilities, losses, log_sums(logits), gaps, scores]
        found += [logits.softmax(1)] if self._keeps_scores else []
        self._batches.append(tuple(each.float() if each.is_floating_point() else each for each in found))

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._hook is not None:
            self._hook.remove()
        columns = [torch.cat(column).cpu().numpy() for column in zip(*self._batches, strict=True)]
        mine = columns, torch.cat(self._loaded).cpu().numpy()
        self._batches, self._loaded = [], []
        ranks = gather_on_first(mine, trainer.world_size)
        if ranks is not None:
            self.result = _merge([columns for columns, _ in ranks if columns], [loaded for _, loaded in ranks])


def _merge(parts: list[list[np.ndarray]], loaded: list[np.ndarray]) -> Predicted:
    """Merge the predictions of the ranks, and sort them by position. parts: columns of each rank that has any, at least
    one, in the order of Predicted's fields, with or without scores. loaded: positions loaded by each rank."""
    columns = [np.concatenate(each) for each in zip(*parts, strict=True)]
    order = columns[0].argsort()
    index, classes, probabilities, losses, sums, gaps, familiarities, *scores = (column[order] for column in columns)
    seen = np.unique(np.concatenate(loaded))
    return Predicted(
        index, classes, probabilities, losses, sums, gaps, scores[0] if scores else None, seen, familiarities
    )
