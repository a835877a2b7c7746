"""What stays of a run: config.yaml, metrics.csv, summary.json, curves.png. Written by rank 0."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as L

from imagenet_ddp.callbacks.checkpoint import ResumeCheckpoint
from imagenet_ddp.callbacks.loop_position import is_epoch_over
from imagenet_ddp.callbacks.progress import loss_words
from imagenet_ddp.callbacks.running_metrics import RunningMetrics
from imagenet_ddp.runs.curves import draw_curves
from imagenet_ddp.runs.folder import kept
from imagenet_ddp.runs.log import Log
from imagenet_ddp.runs.summary import must_count
from imagenet_ddp.system.atomic_write import atomic_write
from imagenet_ddp.system.text import percent

COLUMNS: tuple[str, ...] = (
    "epoch", "step", "train/loss", "train/top1", "train/top5", "val/loss", "val/top1", "val/top5", "best/val/top1",
    "lr", "images_per_s", "data_wait_frac", "train_s", "num_val_images_counted",
)  # fmt: skip


class History(L.Callback):
    """One row of metrics.csv per epoch, and the curves; accuracies as fractions. Comes after Meters; Saver, which comes
    last, never writes an epoch that the file lacks. Rows of later epochs than a resumed checkpoint's are taken out
    again."""

    def __init__(self, folder: Path, log: Log, meters: RunningMetrics, saver: ResumeCheckpoint, title: str):
        self.rows: list[dict[str, Any]] = []
        self.counted: tuple[int, int] = (0, 0)  # (images, most times) of the last validation
        self._folder, self._log, self._meters, self._saver = folder, log, meters, saver
        self._title = title
        self._validated: dict[str, float] = {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = state_dict["rows"]
        self._validated = state_dict.get("validated", {})

    def state_dict(self) -> dict[str, Any]:
        return {"rows": list(self.rows), "validated": dict(self._validated)}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._write(trainer)  # takes out the rows a resumed run will write again

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 0:
            self._validated = {}

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.counted = pl_module.num_counted  # type: ignore[assignment]
            must_count(self.counted, len(pl_module.counted.times))  # type: ignore[arg-type]
            self._saver.take_score(trainer)
            self._validated = {
                name: float(trainer.callback_metrics[name]) for name in ("val/loss", "val/top1", "val/top5")
            }

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        figures, meters = self._meters.epoch_figures, self._meters
        assert figures is not None
        val, best = self._validated, self._saver.best_top1
        epoch = trainer.current_epoch + 1
        row = {
            "epoch": epoch,
            "step": trainer.global_step,
            "train/loss": figures.loss,
            "train/top1": figures.top1,
            "train/top5": figures.top5,
            **val,
            "best/val/top1": best,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            "images_per_s": round(meters.images_per_s, 2),
            "data_wait_frac": round(meters.data_wait_frac, 4),
            "train_s": round(meters.elapsed_s, 2),
            "num_val_images_counted": self.counted[0] if val else None,
        }
        # an epoch that was cut short, by trainer.max_steps or max_time, has a row already when it is resumed
        self.rows = [*(earlier for earlier in self.rows if earlier["epoch"] < epoch), row]
        self._write(trainer)
        summary = f"epoch {epoch}/{trainer.max_epochs}"
        if not is_epoch_over(trainer):
            summary += f" (ended after {trainer.fit_loop.batch_idx + 1} of {trainer.num_training_batches} steps)"
        summary += f": train loss {loss_words(figures.loss)}"
        summary += f" top-1 {percent(figures.top1)}"
        if val:
            summary += (
                f" | val loss {loss_words(val['val/loss'])} top-1 {percent(val['val/top1'])}"
                f" top-{pl_module.top_k} {percent(val['val/top5'])} | best top-1 {percent(best or 0)}"
            )
        self._log.say(summary + f" | {meters.images_per_s:.1f} images/s, data wait {percent(meters.data_wait_frac, 1)}")

    def _write(self, trainer: L.Trainer) -> None:
        if not trainer.is_global_zero:
            return
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(self.rows)
        with kept(path := self._folder / "metrics.csv"):
            atomic_write(path, text.getvalue())

    def draw(self, top_k: int) -> None:
        if self.rows:
            with kept(path := self._folder / "curves.png"):
                draw_curves(self._folder / "metrics.csv", path, self._title, top_k=top_k)


class BadImagesList(L.Callback):
    """bad_images.csv: the images that could not be read, of all ranks, and of this run before it was resumed.
    all_images: (path, reason)."""

    def __init__(self, path: Path, all_images: Callable[[], list[tuple[str, str]]]):
        self._path, self._all_images = path, all_images
        self._written: dict[str, str] = {}
        if path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                self._written = {row["path"]: row["reason"] for row in csv.DictReader(file)}

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.write(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.write(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self.write(trainer)

    def write(self, trainer: L.Trainer) -> None:
        if not trainer.is_global_zero:
            return
        found = self._written | dict(self._all_images())
        if len(found) > len(self._written):
            text = io.StringIO(newline="")
            csv.writer(text).writerows([("path", "reason"), *sorted(found.items())])
            with kept(self._path):
                atomic_write(self._path, text.getvalue().encode(errors="backslashreplace"))
            self._written = found
