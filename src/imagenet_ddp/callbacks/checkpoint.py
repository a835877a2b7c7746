"""Checkpoints: written whole or not at all, complete enough to go on at the next image and to be used without this
run's config."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.callbacks import Checkpoint, StochasticWeightAveraging

from imagenet_ddp.callbacks.loop_position import is_epoch_over, validates_next
from imagenet_ddp.runs.checkpoint_file import FORMAT, KEY, link_or_copy


class ResumeCheckpoint(Checkpoint):
    """Write last.ckpt after every so many epochs, at the end, and where a run is stopped; best.ckpt at the highest
    val/top1, with the weights that reached it, also in mid-epoch.

    A Checkpoint, because Lightning calls these last: what other callbacks have decided (EarlyStopping) is in the file.
    contents: what a checkpoint carries beside the weights (config, classes, evaluation transform), plain containers
    only. global_batch: images per step of all ranks. Called on all ranks alike: Lightning gathers the state, rank 0
    writes.
    """

    def __init__(
        self, folder: Path, contents: Mapping[str, Any], every_n_epochs: int, num_train_images: int, global_batch: int
    ):
        self.folder = folder
        self.best_top1: float | None = None
        self.best_epoch = 0
        self._contents, self._every_n_epochs = dict(contents), every_n_epochs
        self._num_images, self._global_batch = num_train_images, global_batch
        self.num_epochs = 0  # whole ones that are trained
        self._improved = False  # by the last validation, and not yet written
        self._before_validation = False  # the checkpoint that is being written
        self._last_saved: tuple[int, bool] | None = None  # updates when last.ckpt was written, and _before_validation

    @property
    def last_path(self) -> Path:
        return self.folder / "last.ckpt"

    @property
    def best_path(self) -> Path:
        return self.folder / "best.ckpt"

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self.take_score(trainer)
        if self._improved and not is_epoch_over(trainer):  # else on_train_epoch_end writes one file for both
            trainer.save_checkpoint(self.best_path)
            self._improved = False

    def take_score(self, trainer: L.Trainer) -> None:
        """Of the validation that has just ended. For a callback that comes before the user's checkpoints, which then
        hold it."""
        if "val/top1" not in trainer.callback_metrics:
            return
        top1 = float(trainer.callback_metrics["val/top1"])
        if self.best_top1 is None or top1 > self.best_top1:
            self.best_top1, self.best_epoch, self._improved = top1, trainer.current_epoch + 1, True

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        whole = is_epoch_over(trainer)
        self.num_epochs = trainer.current_epoch + whole
        ends = trainer.should_stop or self.num_epochs == trainer.max_epochs
        ends |= not whole or 0 <= trainer.max_steps <= trainer.global_step
        if ends or self.num_epochs % self._every_n_epochs == 0:
            self._save_last(trainer)
            if self._improved and trainer.is_global_zero:
                link_or_copy(self.last_path, self.best_path)
        elif self._improved:
            trainer.save_checkpoint(self.best_path)
        self._improved = False

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(callback, StochasticWeightAveraging) for callback in callbacks):
            self._save_last(trainer)  # only now has its average taken the weights' place

    def save_stopped(self, trainer: L.Trainer, before_validation: bool) -> None:
        """before_validation: the epoch's batches so far are done, the validation after them is not."""
        if self._last_saved != (trainer.global_step, before_validation):  # else on_train_epoch_end has just done it
            self._before_validation = before_validation
            self._save_last(trainer)

    def _save_last(self, trainer: L.Trainer) -> None:
        trainer.save_checkpoint(self.last_path)
        self._last_saved = (trainer.global_step, self._before_validation)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called for the files of other callbacks too, so that what is saved follows from where the training is."""
        loops = checkpoint["loops"]["fit_loop"]
        epochs, batches = loops["epoch_progress"]["current"], loops["epoch_loop.batch_progress"]["current"]["ready"]
        epoch = max(epochs["started"] - 1, 0)
        sampler = trainer.datamodule.train_sampler  # type: ignore[attr-defined]
        in_batch_end = loops["epoch_loop.batch_progress"]["current"]["completed"] < batches
        if self._before_validation or (in_batch_end and validates_next(trainer)):
            kind = "before_validation"
            _set_batches(loops, batches)
            _set_validation(loops)
        elif epochs["processed"] == epochs["started"] and is_epoch_over(trainer):
            kind = "epoch_end"
        else:
            kind = "mid_epoch"
            # gradients of an update that is not complete are not in the file: its batches are trained again
            if sampler and not is_epoch_over(trainer):
                batches = max(batches - batches % trainer.accumulate_grad_batches, sampler.steps_before(epoch))
            _set_batches(loops, batches)
            _set_epochs(loops, epoch, begun=True)
        checkpoint[KEY] = {
            **self._contents,
            "format": FORMAT,
            "best_top1": self.best_top1,
            "best_epoch": self.best_epoch,
            # a file of the user's own, written between an epoch's last validation and its end, where best.ckpt follows
            "improved": self._improved and kind == "mid_epoch" and is_epoch_over(trainer),
            "kind": kind,
            "epoch": epoch,
            "images": sampler.images_after(epoch, batches) if sampler else 0,
            "global_batch_size": self._global_batch,
        }

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        state = checkpoint[KEY]
        self.best_top1, self.best_epoch = state["best_top1"], state["best_epoch"]
        self._improved = state.get("improved", False)
        self.num_epochs = state["epoch"] + (state["kind"] == "epoch_end")
        loops = checkpoint["loops"]["fit_loop"]
        if state["kind"] == "epoch_end":
            # with trainer.max_steps Lightning takes a finished epoch for one that was interrupted
            _set_epochs(loops, self.num_epochs)
            _set_batches(loops, 0, keep_total=True)
            return
        batches = loops["epoch_loop.batch_progress"]["current"]["ready"]
        steps = -(-self._num_images // self._global_batch)
        if state["global_batch_size"] != self._global_batch:
            # counted in the new, larger or smaller steps, so that the epoch still ends at its usual number of them
            batches = steps - -(-(self._num_images - state["images"]) // self._global_batch)
            _set_batches(loops, batches, keep_total=True)
        limit = trainer.limit_train_batches
        limit = min(limit, steps) if isinstance(limit, int) else int(limit * steps)
        if batches > limit:  # a new, lower limit, or larger steps: the epoch is over but for its validation
            batches = limit
            _set_batches(loops, batches, keep_total=True)
            _set_validation(loops)
        trainer.datamodule.start_at(state["epoch"], state["images"], batches)  # type: ignore[attr-defined]


# Lightning's counters of what a training has behind it. ready and started count what has begun, processed and
# completed what has ended; from where they differ it concludes where a run was interrupted.


def _set_batches(loops: dict[str, Any], batches: int, *, keep_total: bool = False) -> None:
    """So many batches of this epoch are done. keep_total: those of the whole run stay."""
    progress = loops["epoch_loop.batch_progress"]
    total = progress["total"]["ready"] - (0 if keep_total else progress["current"]["ready"] - batches)
    for part, count in (("current", batches), ("total", total)):
        progress[part] = dict.fromkeys(("ready", "started", "processed", "completed"), count)
    progress["is_last_batch"] = False


def _set_validation(loops: dict[str, Any]) -> None:
    """A validation has begun: Lightning runs it whole, and trains nothing before."""
    progress = loops["epoch_loop.val_loop.batch_progress"]
    for part in ("total", "current"):
        progress[part] = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
    progress["is_last_batch"] = False


def _set_epochs(loops: dict[str, Any], epochs: int, *, begun: bool = False) -> None:
    """So many epochs are done. begun: and a part of the next one."""
    progress = loops["epoch_progress"]
    for part in ("current", "total"):
        progress[part] = {
            "ready": epochs + begun, "started": epochs + begun, "processed": epochs, "completed": epochs,
        }  # fmt: skip
