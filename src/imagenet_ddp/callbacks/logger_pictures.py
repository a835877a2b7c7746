"""Pass the config, pictures and the best checkpoint of a run to its loggers."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch import loggers
from torch import Tensor

from imagenet_ddp.callbacks.checkpoint import ResumeCheckpoint
from imagenet_ddp.callbacks.loggers.background import Background
from imagenet_ddp.callbacks.loop_state import find_callback
from imagenet_ddp.data.contact_sheet import FILE
from imagenet_ddp.models.metrics import has_class
from imagenet_ddp.runs.confusion_figure import draw_confusion
from imagenet_ddp.system.text import first_line

MAX_CLASSES = 50  # most classes shown in the confusion matrix


class LoggerPictures(L.Callback):
    """Log the config as hyper-parameters. Log train_batch.png, curves.png and the confusion matrix of the last
    validation to the loggers that accept pictures. At the end, pass best.ckpt to the loggers, which upload it if their
    log_model is set.

    With more than MAX_CLASSES classes, the matrix shows the classes with the most confusions.
    """

    def __init__(self, run_dir: Path, hyperparams: Mapping[str, Any]):
        self.run_dir = run_dir
        self.hyperparams = hyperparams
        self._has_batch = False
        self._is_validated = False
        self._target: list[Tensor] = []  # targets of this rank's images in the last validation
        self._predicted: list[Tensor] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_hyperparams(dict(self.hyperparams))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._has_batch:
            self._has_batch = True
            self._log(trainer, FILE)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._is_validated = not trainer.sanity_checking
        self._target, self._predicted = [], []

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        if outputs is not None:
            logits = outputs["logits"]
            self._predicted.append(logits.argmax(1).masked_fill(~has_class(logits), -1))
            self._target.append(batch["target"][: len(logits)])

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Sum the confusion matrix over all ranks, and draw it on rank 0."""
        if not self._is_validated:
            return
        labels = trainer.datamodule.source.labels  # type: ignore[attr-defined]
        empty = torch.empty(0, dtype=torch.long, device=pl_module.device)
        target, predicted = (torch.cat([empty, *each]) for each in (self._target, self._predicted))
        there = predicted >= 0  # an image without a class is in no column
        target, predicted = target[there], predicted[there]
        wrong = target != predicted
        num_wrong = _sum(trainer, torch.bincount(torch.cat([target[wrong], predicted[wrong]]), minlength=len(labels)))
        kept = num_wrong.topk(min(MAX_CLASSES, len(labels))).indices.sort().values
        position = torch.full((len(labels),), -1, device=kept.device)
        position[kept] = torch.arange(len(kept), device=kept.device)
        row, column = position[target], position[predicted]
        cells = (row * len(kept) + column)[(row >= 0) & (column >= 0)]
        matrix = _sum(trainer, torch.bincount(cells, minlength=len(kept) ** 2)).view(len(kept), -1)
        if trainer.is_global_zero:
            names = [labels[index] for index in kept.tolist()]
            path = self.run_dir / "confusion_matrix.png"
            try:
                draw_confusion(path, matrix.cpu().numpy(), names, len(labels))
            except Exception as error:  # summary.json, written later, must not be lost because of a picture
                warnings.warn(f"{path} cannot be drawn: {first_line(error)}", stacklevel=2)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._log(trainer, "curves.png")  # drawn by History, which precedes this callback
        if self._is_validated:
            self._log(trainer, "confusion_matrix.png")
        checkpoint = find_callback(trainer, ResumeCheckpoint)
        if not trainer.is_global_zero or checkpoint is None or not checkpoint.best_path.is_file():
            return
        # the attributes of Lightning's ModelCheckpoint that its loggers read
        as_lightnings: Any = SimpleNamespace(
            save_top_k=1,
            monitor=checkpoint.best.monitor,
            best_model_path=str(checkpoint.best_path),
            best_model_score=checkpoint.best.value,
        )
        for logger in trainer.loggers:
            logger.after_save_checkpoint(as_lightnings)

    def _log(self, trainer: L.Trainer, name: str) -> None:
        """Log this file of the run folder, if it exists and was not written by an earlier part of the run."""
        path, key, step = self.run_dir / name, f"pictures/{Path(name).stem}", max(trainer.global_step - 1, 0)
        if not trainer.is_global_zero or not path.is_file():
            return
        for logger in trainer.loggers:
            if isinstance(logger, Background):
                logger.log_picture(key, path, step)
            elif isinstance(logger, loggers.TensorBoardLogger):
                logger.experiment.add_image(key, _pixels(path), step, dataformats="HWC")
            elif isinstance(logger, loggers.WandbLogger):
                logger.log_image(key, [str(path)], step)
            elif isinstance(logger, loggers.MLFlowLogger):
                logger.experiment.log_artifact(logger.run_id, str(path))
            elif isinstance(logger, loggers.CometLogger):
                logger.experiment.log_image(str(path), name=key, step=step)


def _sum(trainer: L.Trainer, counts: Tensor) -> Tensor:
    """Sum the counts over all ranks."""
    return trainer.strategy.reduce(counts, reduce_op="sum")


def _pixels(path: Path) -> Any:
    import numpy as np
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))
