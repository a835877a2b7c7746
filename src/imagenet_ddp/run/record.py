"""What stays of a run: config.yaml, metrics.csv, summary.json, curves.png. Written by rank 0."""

import csv
import io
import json
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import yaml

from imagenet_ddp import __version__
from imagenet_ddp.run.checkpoint import Saver
from imagenet_ddp.run.folder import kept
from imagenet_ddp.run.log import Log
from imagenet_ddp.run.meters import Meters
from imagenet_ddp.run.plots import draw_curves
from imagenet_ddp.run.position import is_epoch_over
from imagenet_ddp.run.progress import loss_words
from imagenet_ddp.schema import RunError
from imagenet_ddp.words import percent
from imagenet_ddp.writing import write_whole

COLUMNS: tuple[str, ...] = (
    "epoch", "step", "train/loss", "train/top1", "train/top5", "val/loss", "val/top1", "val/top5", "best/val/top1",
    "lr", "images_per_s", "data_wait_frac", "train_s", "num_val_images_counted",
)  # fmt: skip


class Record(L.Callback):
    """One row of metrics.csv per epoch, and the curves; accuracies as fractions. Comes after Meters; Saver, which comes
    last, never writes an epoch that the file lacks. Rows of later epochs than a resumed checkpoint's are taken out
    again."""

    def __init__(self, folder: Path, log: Log, meters: Meters, saver: Saver, title: str):
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
            write_whole(path, text.getvalue())

    def draw(self, top_k: int) -> None:
        if self.rows:
            with kept(path := self._folder / "curves.png"):
                draw_curves(self._folder / "metrics.csv", path, self._title, top_k=top_k)


def counted_sentence(counted: tuple[int, int], num_images: int, *, skips: bool = False) -> str:
    """The last line of every evaluation. skips: what was not counted could not be read."""
    images, most = counted
    times = "each once" if most <= 1 else f"some {most} times"
    unreadable = f", {num_images - images} unreadable" if skips and images < num_images else ""
    return f"{images} of {num_images} validation images, {times}{unreadable}."


def must_count(counted: tuple[int, int], num_images: int) -> None:
    """RunError: not a single image could be read, so that there is no result."""
    if num_images and not counted[0]:
        raise RunError(
            f"at least one of {num_images} validation images is expected to be readable, but none is. "
            "HINT: bad_images.csv lists them with the reasons."
        )


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
                write_whole(self._path, text.getvalue().encode(errors="backslashreplace"))
            self._written = found


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    with kept(path := folder / "config.yaml"):
        write_whole(path, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    with kept(path):
        write_whole(path, json.dumps(content, indent=2) + "\n")


def circumstances(command: str) -> dict[str, Any]:
    """Under which versions and by which command: the part of a summary that no measurement changes."""
    packages = ("torch", "torchvision", "lightning", "torchmetrics", "hydra-core")
    return {
        "versions": {
            "imagenet_ddp": __version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in packages},
        },
        "git_commit": _git_commit(),
        "command": command,
        "finished_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _git_commit() -> str | None:
    """Of the checkout this package runs from; None where it is installed. -dirty: with changes that are in no
    commit."""
    checkout = Path(__file__).resolve().parents[3]
    if not (checkout / ".git").exists() or not (checkout / "conf").is_dir():
        return None
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        result = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
