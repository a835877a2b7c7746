"""Write bad_images.csv, the list of images that could not be read."""

import csv
from collections.abc import Callable
from pathlib import Path

import lightning.pytorch as L

from imagenet_ddp.runs.folder import disk_errors_as_run_error
from imagenet_ddp.system.files import atomic_write, csv_bytes


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
