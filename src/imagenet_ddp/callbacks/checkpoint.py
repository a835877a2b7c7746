"""Write checkpoints from which a training run continues at the next image, as if it had not been interrupted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.trainer.states import TrainerFn

from imagenet_ddp.callbacks.loop_state import (
    continue_at,
    describe,
    find_callback,
    find_callbacks,
    is_epoch_over,
    is_reached,
    is_update,
    validate_now,
    validates_next,
    validates_start,
)
from imagenet_ddp.callbacks.measures import Best
from imagenet_ddp.callbacks.run_end import TimeLimit, ended_by
from imagenet_ddp.callbacks.train_log import find_log
from imagenet_ddp.runs.checkpoint_file import FORMAT, KEY
from imagenet_ddp.runs.checkpoint_io import duplicate, move, wait_until_written
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.version import __version__


class ResumeCheckpoint(Checkpoint):
    """Write last.ckpt every `every_n_epochs` epochs, after a validation of the weights before the first step, at the
    end of the training, and when a signal stops the run. Write best.ckpt with the weights that reached the best
    `monitor` value, even within an epoch. Keep the last.ckpt before the current one as previous.ckpt, in case the
    current one is damaged.

    every_n_steps: also write last.ckpt within an epoch, every `every_n_steps` optimizer steps.

    Resume with `trainer.fit(..., ckpt_path=callback.last_path, weights_only=True)`. With a data module such as
    ImageDataModule (see loop_state.ResumableData), the training continues at the next image, even on another
    number of devices. With any other data, it continues at Lightning's next step, on batches in a new order.

    dirpath: None means `checkpoints` in the trainer's default_root_dir. contents: plain containers to store beside the
    weights (imagenet_ddp.evaluate needs config, classes, labels, num_train_images and eval_transform).

    The class is a Checkpoint because Lightning calls these callbacks last, so the file contains the decisions of other
    callbacks such as EarlyStopping.
    """

    def __init__(
        self,
        dirpath: str | Path | None = None,
        *,
        every_n_epochs: int = 1,
        every_n_steps: int | None = None,
        monitor: str = "val/top1",
        mode: str = "max",
        contents: Mapping[str, Any] | None = None,
    ):
        self.dirpath = None if dirpath is None else Path(dirpath)
        self.contents = dict(contents or {})
        self.every_n_epochs, self.every_n_steps = every_n_epochs, every_n_steps
        self.best = Best(monitor, mode)
        self._written_best: int | None = None  # step of the weights in best.ckpt
        self._before_validation = False  # whether the checkpoint being written precedes a validation
        self._ended_by: str | None = None  # the option that has ended the training, of which this is the last file
        self._last_saved: tuple[int, bool, str | None] | None = None  # (step, these two) of last.ckpt
        self._is_postponed = False  # last.ckpt is due, but a validation comes first
        self._has_best_file = False  # best.ckpt was written, or there at the start
        self._limits: tuple[int | None, int] | None = None  # trainer's, while a resume only validates
        self.is_over = False  # set before a resume if nothing is left to train

    @property
    def store(self) -> CheckpointStore:
        assert self.dirpath is not None, "dirpath=None is filled in when the trainer starts"
        return CheckpointStore(self.dirpath)

    @property
    def last_path(self) -> Path:
        return self.store.last

    @property
    def best_path(self) -> Path:
        return self.store.best

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.dirpath = self.dirpath or CheckpointStore.of_run(Path(trainer.default_root_dir)).folder
        self.best = find_log(trainer).track(self.best)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._limits:
            trainer.should_stop, self._limits = True, None
        # if the epoch is over, on_train_epoch_end writes one file for the validation and the epoch
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking and not is_epoch_over(trainer):
            self._save(trainer, last=self._is_postponed)

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if validates_start(trainer):
            self._save(trainer, last=True)

    def _save(self, trainer: L.Trainer, *, last: bool) -> None:
        """Write best.ckpt if the current weights have the best score, and last.ckpt if it is due."""
        is_best = self.best.step == trainer.global_step and self.best.step != self._written_best
        if is_best:
            self._written_best = self.best.step
            self._has_best_file = True
        if last:
            self._save_last(trainer, is_best=is_best)
        elif is_best:
            trainer.save_checkpoint(self.best_path)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._has_best_file |= self.best_path.is_file()
        if self._limits:
            validate_now(trainer)
        else:
            trainer.should_stop |= self.is_over

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._limits:
            trainer.fit_loop.max_epochs, trainer.fit_loop.epoch_loop.max_steps = self._limits

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.every_n_steps is None or trainer.global_step % self.every_n_steps:
            return
        if is_update(trainer) and not is_epoch_over(trainer):
            if validates_next(trainer):
                self._is_postponed = True  # until the score of the validation is known
            else:
                self._save_last(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._ended_by = ended_by(trainer, trainer.current_epoch + is_epoch_over(trainer))
        is_end = self._ended_by is not None or not is_epoch_over(trainer)
        self._save(trainer, last=is_end or (trainer.current_epoch + 1) % self.every_n_epochs == 0)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        wait_until_written(trainer)

    def lost_files(self) -> list[Path]:
        """Return the checkpoints that were written and are not there any more."""
        written = [self.best_path] * self._has_best_file + [self.last_path] * (self._last_saved is not None)
        return [path for path in written if not path.is_file()]

    def save_stopped(self, trainer: L.Trainer, before_validation: bool) -> None:
        """Write last.ckpt when a signal stops the run. Call on all ranks.

        before_validation: whether the validation that follows the batches trained so far still has to be run.
        """
        self._before_validation = before_validation
        self._ended_by = ended_by(trainer, trainer.current_epoch + is_epoch_over(trainer))
        if self._last_saved != (trainer.global_step, before_validation, self._ended_by):  # else saved at this step
            self._save_last(trainer)
        wait_until_written(trainer)

    def _save_last(self, trainer: L.Trainer, *, is_best: bool = False) -> None:
        """Write last.ckpt. is_best: first write best.ckpt, so that a run killed in between trains this epoch again."""
        store = self.store
        written = store.best if is_best else store.next
        trainer.save_checkpoint(written)
        # After the write, so that last.ckpt and previous.ckpt are not two names of one file during the write.
        if self._last_saved is not None:  # else last.ckpt may be damaged, and previous.ckpt the only good file
            duplicate(trainer, store.last, store.previous)
        (duplicate if is_best else move)(trainer, written, store.last)
        self._last_saved = (trainer.global_step, self._before_validation, self._ended_by)
        self._is_postponed = False

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Store the position of the training in the checkpoint. Lightning also calls this when another callback saves
        a checkpoint."""
        position = describe(trainer, checkpoint["loops"]["fit_loop"], before_validation=self._before_validation)
        checkpoint[KEY] = {
            **self.contents,
            "version": __version__,
            "format": FORMAT,
            "best_score": self.best.value,
            "best_epoch": self.best.epoch,
            "best_step": self.best.step,
            "monitor": self.best.monitor,
            "start": find_log(trainer).start,
            "ended_by": self._ended_by,
            "written_best": self._written_best,
            **position,
        }

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        trainer.num_sanity_val_steps = 0  # type: ignore[attr-defined]  # it checks, or scores, the start of a run
        if (stopping := find_callback(trainer, EarlyStopping)) and stopping.state_key in checkpoint["callbacks"]:
            # Lightning would restore the stored patience, even if another one is set for the resume, and the reason why
            # the run ended, which no longer holds
            changed: dict[str, Any] = {"patience": stopping.patience}
            if not self.is_over:
                changed["stopping_reason"] = stopping.stopping_reason.value
            checkpoint["callbacks"][stopping.state_key] |= changed
        if (state := checkpoint.get(KEY)) is None:  # written without this callback
            return
        self._written_best = state["written_best"]
        has_least = state["epoch"] + state["is_over"] >= (trainer.min_epochs or 0)
        has_least &= checkpoint["global_step"] >= (trainer.min_steps or 0)
        for limit in find_callbacks(trainer, TimeLimit):
            limit.has_passed = self.is_over and state.get("ended_by") == limit.key
            if not self.is_over and has_least and limit.stored_s(checkpoint) >= limit.limit_s:
                # the run was killed after it had written this file and before it could end
                limit.has_passed = self.is_over = True
        only_validate = self._is_left_to_validate(trainer, checkpoint, state)
        continue_at(trainer, checkpoint["loops"]["fit_loop"], state, only_validate=only_validate)
        if only_validate:
            # Lightning would return at once. Half a step more: it then goes on, but no step is left
            self._limits = trainer.max_epochs, trainer.max_steps
            trainer.fit_loop.max_epochs = state["epoch"] + 1
            trainer.fit_loop.epoch_loop.max_steps = checkpoint["global_step"] + 0.5

    def _is_left_to_validate(self, trainer: L.Trainer, checkpoint: dict[str, Any], state: Mapping[str, Any]) -> bool:
        """Return whether nothing is left to train, but the last state has no validation yet."""
        steps, is_validated = checkpoint["global_step"], checkpoint["callbacks"]["TrainLog"].get("val_step")
        is_last = is_reached(steps, trainer.max_steps) or (
            state["is_over"] and is_reached(state["epoch"] + 1, trainer.max_epochs)
        )
        return (is_last or self.is_over) and 0 < steps != is_validated and trainer.enable_validation
