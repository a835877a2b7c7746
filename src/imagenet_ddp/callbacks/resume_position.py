"""Describe the position in the training at which a checkpoint is written, and continue at that image of the epoch, on
any number of devices."""

from collections.abc import Mapping
from typing import Any, Protocol

import lightning.pytorch as L

from imagenet_ddp.callbacks.loop_state import begin_validation, is_epoch_over, set_batches, set_epochs, validates_next
from imagenet_ddp.data.sampler import BatchSampler
from imagenet_ddp.errors import ConfigError


class ResumableData(Protocol):
    """The interface of a data module whose epochs can continue at any image. ImageDataModule implements it."""

    train_sampler: BatchSampler | None  # sampler of the current train_dataloader()

    @property
    def num_train_images(self) -> int: ...

    @property
    def train_step_images(self) -> int:
        """Return the number of images in one batch over all ranks."""
        ...

    def start_at(self, epoch: int, image: int, step: int) -> None:
        """Skip the first `image` images of this epoch, which have been trained on in `step` steps. Must be called
        before the loaders are made."""
        ...


def describe(trainer: L.Trainer, loops: dict[str, Any], *, before_validation: bool) -> dict[str, Any]:
    """Return the kind of the position (epoch_end, mid_epoch, before_validation or interrupted), the epoch, the number
    of its images already trained on, the images per step, and whether the epoch has no more steps. Also correct
    Lightning's own counters in `loops`, which is checkpoint["loops"]["fit_loop"].

    before_validation: whether the validation that follows the batches trained so far still has to be run. The kind is
    interrupted if another callback writes the checkpoint after an error, possibly within an update or a validation.
    """
    epochs, batches = loops["epoch_progress"]["current"], loops["epoch_loop.batch_progress"]["current"]["ready"]
    epoch = max(epochs["started"] - 1, 0)
    data = _resumable(trainer)
    sampler = data.train_sampler if data else None
    in_batch_end = loops["epoch_loop.batch_progress"]["current"]["completed"] < batches
    if trainer.interrupted:
        kind = "interrupted"
    elif before_validation or (in_batch_end and validates_next(trainer)):
        kind = "before_validation"
        set_batches(loops, batches)
        begin_validation(loops)
    elif epochs["processed"] == epochs["started"] and is_epoch_over(trainer):
        kind = "epoch_end"
    else:
        kind = "mid_epoch"
        # the checkpoint has no gradients of an incomplete update, so the batches of this update are trained again
        if sampler and not is_epoch_over(trainer):
            batches = max(batches - batches % trainer.accumulate_grad_batches, sampler.steps_before(epoch))
        set_batches(loops, batches)
        set_epochs(loops, epoch, begun=True)
    return {
        "kind": kind,
        "epoch": epoch,
        "images": sampler.images_after(epoch, batches) if sampler else 0,
        "step_images": data.train_step_images if data else 0,
        "is_over": is_epoch_over(trainer),
    }


def continue_at(trainer: L.Trainer, loops: dict[str, Any], position: Mapping[str, Any]) -> None:
    """Make Lightning and the data module continue at a position returned by describe()."""
    if position["kind"] == "interrupted":
        raise ConfigError(
            f"{trainer.ckpt_path} must be written between two steps to be resumed, but was written after an error had "
            "ended the training (save_on_exception). Hint: resume from the last.ckpt of that run."
        )
    if position["kind"] == "epoch_end":
        # with trainer.max_steps, Lightning mistakes a finished epoch for an interrupted one
        set_epochs(loops, position["epoch"] + 1)
        set_batches(loops, 0, keep_total=True)
        return
    if (data := _resumable(trainer)) is None:
        return
    batches = loops["epoch_loop.batch_progress"]["current"]["ready"]
    step_images = data.train_step_images
    steps = -(-data.num_train_images // step_images)
    if position["step_images"] != step_images:
        # count in steps of the new size, so that the epoch still ends after its usual number of steps
        batches = steps - -(-(data.num_train_images - position["images"]) // step_images)
        set_batches(loops, batches, keep_total=True)
    limit = trainer.limit_train_batches
    limit = min(limit, steps) if isinstance(limit, int) else int(limit * steps)
    # with a lower limit or larger steps than before, only the validation of this epoch may be left
    if batches > limit or (batches == limit and not position["is_over"]):
        batches = limit
        set_batches(loops, batches, keep_total=True)
        begin_validation(loops)
    data.start_at(position["epoch"], position["images"], batches)


def _resumable(trainer: L.Trainer) -> ResumableData | None:
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    return data if hasattr(data, "start_at") else None
