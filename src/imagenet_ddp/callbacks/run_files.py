"""Write the files of a run folder during training, and pass the pictures to the loggers: metrics.csv, curves.png,
train_batch.png (the first training batch as the network receives it) and bad_images.csv (the unreadable images)."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.loggers import TensorBoardLogger
from torchvision.io import ImageReadMode, read_image  # pyright: ignore[reportMissingTypeStubs]

from imagenet_ddp.callbacks.background_logger import Background
from imagenet_ddp.callbacks.checkpoint import ResumeCheckpoint
from imagenet_ddp.callbacks.loop_state import epochs_validated, find_callback, validates_start
from imagenet_ddp.callbacks.train_log import TrainLog, find_log, train_names
from imagenet_ddp.config.figures import FIGURES_OF
from imagenet_ddp.data.contact_sheet import FILE, write_sheet
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.data.sources.cells import read_cells
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.task import task_of
from imagenet_ddp.runs.disk_errors import disk_errors_as_run_error
from imagenet_ddp.runs.plots import draw_curves
from imagenet_ddp.system.files import atomic_write, csv_bytes, write_in
from imagenet_ddp.system.table_files import of_text_cell, table_bytes
from imagenet_ddp.system.text import first_line

CURVES = "curves.png"
COLUMNS = ("lr", "images_per_s", "data_wait_frac", "train_s", "num_val_images_counted")


def _draw(path: Path, draw: Callable[[Path], None]) -> None:
    """Draw a picture, or warn: a run must not fail, and lose the files that follow, because of a picture."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(path)
    except Exception as error:
        warnings.warn(f"{path} cannot be drawn: {first_line(error)}", stacklevel=2)


class History(L.Callback):
    """Write one row per epoch to metrics.csv, with accuracies as fractions, and curves.png at the end of the training.
    If the start is validated (loop_state.validates_start), the first row is that of epoch 0. A validation within an
    epoch has its own row, with the epochs trained so far, such as 0.25. Other metrics that the module logs as train/...
    or val/... get their own columns. Requires TrainLog.

    Checkpoints contain the rows, so a resumed run removes the rows of epochs after its checkpoint.

    run_dir: folder for both files; None means the trainer's default_root_dir. title: title of the figure; None means
    the folder's name. curves: whether to draw curves.png.
    """

    _train_log: TrainLog  # set in setup()

    def __init__(self, run_dir: str | Path | None = None, *, title: str | None = None, curves: bool = True):
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.title, self.curves = title, curves
        self.rows: list[dict[str, Any]] = []

    @property
    def path(self) -> Path:
        assert self.run_dir is not None, "run_dir=None is filled in when the trainer starts"
        return self.run_dir / "metrics.csv"

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.run_dir = self.run_dir or Path(trainer.default_root_dir)
        self._train_log = find_log(trainer)

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if validates_start(trainer):
            self.rows = [{"epoch": 0, "step": 0, **self._validated(pl_module)}]
            self._write(trainer)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._write(trainer)  # without the rows that a resumed run writes again

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking and (epochs := epochs_validated(trainer)) % 1:
            self._add(trainer, {"epoch": epochs, "step": trainer.global_step, **self._validated(pl_module)})

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        epoch, means, times = trainer.current_epoch + 1, self._train_log.epoch_means, self._train_log.train_times.epoch
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("train/")}
        row: dict[str, Any] = {
            "epoch": epoch,
            "step": trainer.global_step,
            # without second forms of other metrics
            **{name: value for name, value in metrics.items() if not name.endswith(("_step", "_epoch"))},
            **self._validated(pl_module, is_new=self._train_log.val_step == trainer.global_step),
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
        }
        if means is not None:
            row |= train_names(means)  # in full precision
            row["images_per_s"] = round(times.images_per_s, 2)
            row["data_wait_frac"] = round(times.data_wait_frac, 4)
        self._add(trainer, row)

    def _add(self, trainer: L.Trainer, row: dict[str, Any]) -> None:
        # an epoch that trainer.max_steps or trainer.max_time ended early already has a row when the run is resumed
        self.rows = [*(earlier for earlier in self.rows if earlier["epoch"] < row["epoch"]), row]
        self._write(trainer)

    def _validated(self, pl_module: L.LightningModule, *, is_new: bool = True) -> dict[str, Any]:
        """Return the cells that a validation and the time fill. is_new: whether it was that of the current weights."""
        log = self._train_log
        scores = log.scores if is_new else {}
        row = {**scores, f"best/{log.best.monitor}": log.best.value, "train_s": round(log.elapsed_s, 2)}
        if scores and (counted := getattr(pl_module, "val_counts", None)):
            row["num_val_images_counted"] = counted[0]
        return row

    def _columns(self, trainer: L.Trainer) -> list[str]:
        """Return the columns of every table, even if they are empty."""
        task = task_of(trainer.lightning_module)
        figures = FIGURES_OF[task.labels if task else "one"]
        names = [f"train/{each.name}" for each in figures if each.is_mean] + [f"val/{each.name}" for each in figures]
        return ["epoch", "step", *names, f"best/{self._train_log.best.monitor}", *COLUMNS]

    def _write(self, trainer: L.Trainer) -> None:
        if not trainer.is_global_zero:
            return
        columns = list(dict.fromkeys([*self._columns(trainer), *(name for row in self.rows for name in row)]))
        content = csv_bytes(columns, [[row.get(name) for name in columns] for row in self.rows])
        with disk_errors_as_run_error(self.path):
            write_in(self.path.parent, lambda: atomic_write(self.path, content, sync=True))

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.curves and self.rows and trainer.is_global_zero:
            path = self.path.with_name(CURVES)
            _draw(path, lambda path: draw_curves(self.path, path, self.title or path.parent.name))

    def state_dict(self) -> dict[str, Any]:
        return {"rows": list(self.rows)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        rows = [{str(name): value for name, value in row.items()} for row in state_dict["rows"]]
        if wrong := [each for row in rows for each in row.values() if not isinstance(each, int | float | None)]:
            raise TypeError(f"a cell of metrics.csv must be a number, got a {type(wrong[0]).__name__}")
        self.rows = [row for row in rows if row["epoch"] is not None]


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
        _draw(path, lambda path: write_sheet(path, batch, data.eval_transform, data.source.labels))


class BadImagesList(L.Callback):
    """Write the unreadable images found by all ranks to a CSV file, including those found before a resume. A file that
    is no such list is replaced.

    path: the CSV file. all_images: function that returns (path, reason) for each unreadable image found so far by any
    rank. delimiter: value of csv_delimiter.
    """

    def __init__(self, path: Path, all_images: Callable[[], list[tuple[str, str]]], delimiter: str = "comma"):
        self._path, self._all_images, self._delimiter = path, all_images, delimiter
        self._written = _listed(path) if path.is_file() else {}

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
                atomic_write(self._path, table_bytes(("path", "reason"), sorted(found.items()), self._delimiter))
            self._written = found


def _listed(path: Path) -> dict[str, str]:
    """Return path -> reason of the images in a list. Warn of a file that is none, and return {}."""
    columns = dict[str, list[str]]()
    with suppress(ConfigError, OSError):
        columns = read_cells(path, {"path": "path", "reason": "reason"}).columns
    if len(columns) < 2:
        warnings.warn(f"{path} is no list of unreadable images, so a new one replaces it", stacklevel=2)
        return {}
    paths, reasons = ([*map(of_text_cell, columns[name])] for name in ("path", "reason"))
    return dict(zip(paths, reasons, strict=True))


class LoggedFiles(L.Callback):
    """Pass the config, train_batch.png and curves.png to the loggers and, at the end, best.ckpt, which they upload if
    their log_model is set."""

    def __init__(self, run_dir: Path, hyperparams: Mapping[str, Any]):
        self.run_dir, self.hyperparams = run_dir, hyperparams

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for logger in trainer.loggers:
            logger.log_hyperparams(dict(self.hyperparams))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 0 and trainer.current_epoch == 0:
            self._log_picture(trainer, FILE)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._log_picture(trainer, CURVES)  # drawn by History, which precedes this callback
        checkpoint = find_callback(trainer, ResumeCheckpoint)
        if checkpoint is None or not checkpoint.best_path.is_file():
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

    def _log_picture(self, trainer: L.Trainer, name: str) -> None:
        path, step = self.run_dir / name, max(trainer.global_step - 1, 0)
        for logger in trainer.loggers if trainer.is_global_zero and path.is_file() else ():
            if isinstance(logger, Background):
                logger.log_picture(path, step)
            elif isinstance(logger, TensorBoardLogger):
                image = read_image(str(path), ImageReadMode.RGB)
                logger.experiment.add_image(f"pictures/{path.stem}", image, step)  # pyright: ignore
