"""Collect the features of images during a validation, on all ranks, and store them as they come."""

import time
from itertools import chain
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as L
import numpy as np
from torch import Tensor, nn

from imagenet_ddp.curation.features import Features, write_features
from imagenet_ddp.errors import RunError
from imagenet_ddp.strategies.process_group import gather_on_first
from imagenet_ddp.system.console import Progress

PART_S = 20.0  # after which a rank stores what it has
GATHERED = 64  # steps whose features are sent to rank 0 at a time
Rows = tuple[np.ndarray, np.ndarray]  # index, int64 (N,); features, float32 (N, D)


class Collect(L.Callback):
    """Collect the input of the last layer during a validation. Afterwards, `result` has it on rank 0, as stamp ->
    vector.

    head: name of the layer in `pl_module.net`. stamps: uint64 (N,), of the validated images. parts: folder in which
    each rank stores what it has every PART_S seconds.
    """

    def __init__(self, head: str, stamps: np.ndarray, digest: str, parts: Path):
        self.parts, self.result = parts, dict[int, np.ndarray]()
        self._head, self._stamps, self._digest = head, stamps, digest
        self._batches: list[Rows | None] = []  # one for each step, of which every rank has the same number
        self._input: Tensor | None = None  # no list, for each length of which a net would be compiled
        self._num_stored, self._stored_s = 0, time.monotonic()
        self._hook: Any = None
        self._progress: Progress | None = None

    def on_validation_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        layer = pl_module.net.get_submodule(self._head)
        self._hook = layer.register_forward_pre_hook(self._keep)
        self._stored_s = time.monotonic()
        if trainer.is_global_zero:
            self._progress = Progress("features", len(self._stamps), "images")

    def _keep(self, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        self._input = given[0].detach()

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        counted, rows = batch["num_counted"], None
        if self._input is not None:  # of several views, the last is the image as it is
            vectors = self._input[:counted].float().cpu().numpy().copy()  # a part of all tokens in a transformer
            rows = batch["index"][:counted].cpu().numpy(), vectors
            self._input = None
            is_finite = np.isfinite(vectors).all(1)
            if not is_finite.all():
                path = cast("Any", trainer).datamodule.val_images.path(int(rows[0][is_finite.argmin()]))
                raise RunError(
                    f"the features of all images must be finite, but those of {path} hold NaN or inf at precision "
                    f"{trainer.precision}. Hint: set trainer.precision=32-true."
                )
        self._batches.append(rows)
        if self._progress is not None:
            self._progress.add(batch["step_images"])
        if time.monotonic() - self._stored_s > PART_S:
            self._store(trainer.global_rank)

    def _store(self, rank: int) -> None:
        """Store what has come since the last time."""
        new = [rows for rows in self._batches[self._num_stored :] if rows is not None and len(rows[0])]
        if not new:  # a rank may have padding only
            return
        index, vectors = (np.concatenate(column) for column in zip(*new, strict=True))
        self.parts.mkdir(exist_ok=True)
        name = f"{rank}_{self._stamps[index[0]]:016x}.npz"  # no name of an earlier pass
        write_features(self.parts / name, Features.bare(vectors, self._stamps[index], self._digest))
        self._num_stored, self._stored_s = len(self._batches), time.monotonic()

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._hook.remove()
        if self._progress is not None:
            self._progress.close()
        batches, self._batches = self._batches, []
        # some steps at a time: the pickled features of all ranks would take twice the memory of the features
        for begin in range(0, len(batches), GATHERED):
            mine = batches[begin : begin + GATHERED]
            batches[begin : begin + GATHERED] = [None] * len(mine)
            for rows in chain.from_iterable(gather_on_first(mine, trainer.world_size) or ()):
                if rows is not None:
                    self.result |= zip(self._stamps[rows[0]].tolist(), rows[1], strict=True)

    def on_exception(self, trainer: L.Trainer, pl_module: Any, exception: BaseException) -> None:
        self._store(trainer.global_rank)
