"""Write metrics.csv and curves.png into the run folder."""

import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as L

from imagenet_ddp.callbacks.loop_state import validates_start
from imagenet_ddp.callbacks.train_log import TrainLog, find_log
from imagenet_ddp.runs.folder import disk_errors_as_run_error
from imagenet_ddp.runs.plots import draw_curves
from imagenet_ddp.system.files import atomic_write, csv_bytes
from imagenet_ddp.system.text import first_line

COLUMNS: tuple[str, ...] = (
    "epoch", "step", "train/loss", "train/top1", "train/top5", "val/loss", "val/top1", "val/top5", "best/val/top1",
    "lr", "images_per_s", "data_wait_frac", "train_s", "num_val_images_counted",
)  # fmt: skip


def _is_of_epoch(name: str) -> bool:
    """Return whether a metric belongs to training and is not a second form of another metric."""
    return name.startswith("train/") and not name.endswith(("_step", "_epoch"))


class History(L.Callback):
    """Write one row per epoch to metrics.csv, with accuracies as fractions, and curves.png at the end of the training.
    If the start is validated (loop_state.validates_start), the first row is that of epoch 0. Other metrics that the
    module logs as train/... or val/... get their own columns. Requires TrainLog.

    Checkpoints contain the rows, so a resumed run removes the rows of epochs after its checkpoint.

    run_dir: folder for both files; None means the trainer's default_root_dir. title: title of the figure; None means
    the folder's name. curves: whether to draw curves.png.
    """

    _train_log: TrainLog  # set in setup()

    def __init__(
        self,
        run_dir: str | Path | None = None,
        *,
        title: str | None = None,
        curves: bool = True,
    ):
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.title = title
        self.curves = curves
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

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        epoch, means, times = trainer.current_epoch + 1, self._train_log.epoch_means, self._train_log.train_times.epoch
        row: dict[str, Any] = {
            "epoch": epoch,
            "step": trainer.global_step,
            **{name: float(value) for name, value in trainer.callback_metrics.items() if _is_of_epoch(name)},
            **self._validated(pl_module),
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
        }
        if means is not None:
            row |= {name: float(value) for name, value in means.named().items()}  # in full precision
            row["images_per_s"] = round(times.images_per_s, 2)
            row["data_wait_frac"] = round(times.data_wait_frac, 4)
        # an epoch that trainer.max_steps or trainer.max_time ended early already has a row when the run is resumed
        self.rows = [*(earlier for earlier in self.rows if earlier["epoch"] < epoch), row]
        self._write(trainer)

    def _validated(self, pl_module: L.LightningModule) -> dict[str, Any]:
        """Return the cells that a validation and the time fill."""
        row = {
            **self._train_log.scores,
            f"best/{self._train_log.best.monitor}": self._train_log.best.value,
            "train_s": round(self._train_log.elapsed_s, 2),
        }
        if self._train_log.scores and (counted := getattr(pl_module, "num_counted", None)):
            row["num_val_images_counted"] = counted[0]
        return row

    def _write(self, trainer: L.Trainer) -> None:
        if not trainer.is_global_zero:
            return
        columns = list(dict.fromkeys([*COLUMNS, *(name for row in self.rows for name in row)]))
        content = csv_bytes(columns, [[row.get(name) for name in columns] for row in self.rows])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with disk_errors_as_run_error(self.path):
            atomic_write(self.path, content, sync=True)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.curves and self.rows and trainer.is_global_zero:
            path = self.path.with_name("curves.png")
            try:
                draw_curves(self.path, path, self.title or path.parent.name)
            except Exception as error:  # summary.json, written later, must not be lost because of a picture
                warnings.warn(f"{path} cannot be drawn: {first_line(error)}", stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": list(self.rows)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = state_dict["rows"]
