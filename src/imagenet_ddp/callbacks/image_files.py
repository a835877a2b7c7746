"""Write train_batch.png, the first training batch as the network receives it, and bad_images.csv, the list of images
that could not be read."""

import csv
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as L

from imagenet_ddp.data.contact_sheet import FILE, write_sheet
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.runs.folder import disk_errors_as_run_error
from imagenet_ddp.system.files import atomic_write, csv_bytes
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


class BadImagesList(L.Callback):
    """Write the unreadable images found by all ranks to a CSV file, including those found before a resume.

    path: the CSV file. all_images: function that returns (path, reason) for each unreadable image found so far by any
    rank.
    """

    def __init__(self, path: Path, all_images: Callable[[], list[tuple[str, str]]]):
        self._path, self._all_images = path, all_images
        self._written: dict[str, str] = {}
        if path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                self._written = {row["path"]: row["reason"] for row in csv.DictReader(file)}

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._write(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._write(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._write(trainer)

    def _write(self, trainer: L.Trainer) -> None:
        if not trainer.is_global_zero:
            return
        found = self._written | dict(self._all_images())
        if len(found) > len(self._written):
            with disk_errors_as_run_error(self._path):
                atomic_write(self._path, csv_bytes(("path", "reason"), sorted(found.items())))
            self._written = found
