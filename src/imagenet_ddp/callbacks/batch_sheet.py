"""Write train_batch.png, the first training batch as the network receives it."""

import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as L

from imagenet_ddp.data.contact_sheet import FILE, write_sheet
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.system.text import first_line


class BatchSheet(L.Callback):
    """Draw up to 64 images of the first batch that rank 0 trains on, after augmentation and mixing, with their labels.
    A resumed run draws its own first batch. Requires an ImageDataModule, which provides the class names.

    run_dir: folder for the picture; None means the trainer's default_root_dir.
    """

    def __init__(self, run_dir: str | Path | None = None):
        self.run_dir = None if run_dir is None else Path(run_dir)
        self._is_done = False

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        data = getattr(trainer, "datamodule", None)
        if self._is_done or not trainer.is_global_zero or not isinstance(data, ImageDataModule):
            return
        self._is_done = True
        path = (self.run_dir or Path(trainer.default_root_dir)) / FILE
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_sheet(path, batch, data.eval_transform, data.source.labels)
        except Exception as error:  # the run must not fail because of a picture
            warnings.warn(f"{path} cannot be drawn: {first_line(error)}", stacklevel=2)
