"""Choose the length of a fine-tuning so that the run ends when its time is up (budget_min)."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import lightning.pytorch as L
import torch

from imagenet_ddp.callbacks.fine_tuning import has_statistics
from imagenet_ddp.callbacks.image_features import MAX_IMAGES
from imagenet_ddp.callbacks.loop_state import find_callback
from imagenet_ddp.callbacks.run_end import TimeLimit
from imagenet_ddp.callbacks.weight_average import WeightAverage
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.models.head import evaluating
from imagenet_ddp.runs.checkpoint_file import KEY
from imagenet_ddp.system.text import count_noun, duration, percent

GUARD = 1.1  # share of the budget by which the run ends, even within an epoch, if the steps became slower
MEASURED = 0.04  # share of the budget that is spent on timing steps
WARM_UP, MOST_STEPS = 2, 50  # the first steps are slower; no more steps are timed
# or an epoch, if it has fewer: 10 and 17 steps on 480 photographs kept and lowered the top-1 of the regression
LEAST_STEPS = 100
CLOSING_S = 4.0  # writing the checkpoint, the curves and the summary


class TimeBudget(TimeLimit):
    """After the validation of the weights before the first step (loop_state.validates_start), time steps that do not
    change the weights. From both times, choose the number of epochs, and the share of the images that each epoch uses.
    If the time is too short for LEAST_STEPS, train nothing.

    A resumed run keeps the choice. If budget_min or trainer.max_epochs is another one than before, the run chooses how
    many epochs follow those that it has trained, by the times that it measured when it began.

    minutes: from begin_s on, a value of time.monotonic(). say: writes a line to the log. first_averaged: returns the
    first averaged epoch of so many; None without an average. reads_again: after the training, all images pass through
    the net once more, up to MAX_IMAGES of a split. Must precede callbacks that read trainer.max_epochs.
    """

    key = "budget_min"

    def __init__(
        self,
        minutes: float,
        begin_s: float,
        say: Callable[[str], None],
        first_averaged: Callable[[int], int] | None = None,
        *,
        reads_again: bool = False,
    ):
        super().__init__(GUARD * 60 * minutes)
        self._minutes, self._begin_s, self._say, self._first_averaged = minutes, begin_s, say, first_averaged
        self._reads_again = reads_again
        self._most: int | None = None  # trainer.max_epochs, as set
        self._measured: dict[str, float] = {}
        self._chosen: dict[str, Any] = {}  # attribute of the trainer -> value
        self._val_begin_s = 0.0
        self.least_min: int | None = None  # that train something, where these minutes do not

    @property
    def has_chosen_epochs(self) -> bool:
        """Return whether the time limits the epochs, and not trainer.max_epochs."""
        return bool(self._chosen) and self._chosen["max_epochs"] != self._most

    def elapsed_s(self, trainer: L.Trainer) -> float:
        """Return the seconds since this command began."""
        return time.monotonic() - self._begin_s

    def stored_s(self, checkpoint: Mapping[str, Any]) -> float:
        return 0.0

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._most = trainer.max_epochs
        trainer.num_sanity_val_steps = math.inf  # type: ignore[attr-defined]

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._val_begin_s = time.monotonic()

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        val_s = time.monotonic() - self._val_begin_s
        step_s, num_steps = self._time_steps(trainer, pl_module)
        step_s, val_s = _slowest(trainer, step_s, val_s)
        self._measured = {"step_s": step_s, "num_steps": num_steps, "val_s": val_s}
        self._choose(trainer)

    def _choose(self, trainer: L.Trainer, epoch: int = 0, done: float = 0.0) -> None:
        """Choose the number of epochs and the share of the images. epoch: the first of them, counted from 0. done: the
        steps of it that are trained already."""
        (elapsed_s,) = _slowest(trainer, self.elapsed_s(trainer))
        step_s, num_steps, val_s = (self._measured[name] for name in ("step_s", "num_steps", "val_s"))
        closing_s = self._closing_s(trainer)
        left_s = 60 * self._minutes - elapsed_s - closing_s + done * step_s
        most = self._most if self._most is None or self._most < 0 else max(self._most - epoch, 0)
        more, share = choose_length(left_s, step_s, int(num_steps), val_s, most)
        self._chosen = {"max_epochs": epoch + more, "limit_train_batches": share}
        self._apply(trainer)
        images = "all images" if share == 1 else f"{percent(share, 0)} of the images"
        what = "no further epoch" if epoch else "no epoch, so the start is the result"
        if more:
            further = f" after the first {epoch}" if epoch else ""
            what = f"{count_noun(more, 'epoch')}{further}, {'each ' * (more > 1)}a pass over {images}"
        cap = f", which trainer.max_epochs={self._most} limits" if more and not self.has_chosen_epochs else ""
        first = self._first_averaged(epoch + more) if self._first_averaged and more else 0
        average = f" The weights are averaged from epoch {first + 1} on." if first else ""
        hint = ""
        if not (more or epoch or most == 0):
            least_s = elapsed_s + closing_s + 1.5 * min(LEAST_STEPS, num_steps) * step_s + 2 * val_s
            self.least_min = math.ceil(least_s / 60)
            hint = f" Hint: to train, set budget_min={self.least_min} or more."
        self._say(
            f"budget_min={self._minutes:g} allows {what}{cap}: {duration(elapsed_s)} have passed, a pass "
            f"over all images takes {duration(num_steps * step_s)}, and a validation {duration(val_s)}."
            f"{average or hint}"
        )

    def _closing_s(self, trainer: L.Trainer) -> float:
        """Return the seconds from the last validation to the end of the command."""
        if not self._reads_again:
            return CLOSING_S
        data: ImageDataModule = cast("Any", trainer).datamodule
        num_train, num_val = len(data.train_images), max(len(data.val_images), 1)
        step_s, num_steps, val_s = (self._measured[name] for name in ("step_s", "num_steps", "val_s"))
        # of few validation images, the time is that of what begins; a training step takes longer than a forward pass
        train_s = min(val_s / num_val * num_train, num_steps * step_s)
        return CLOSING_S + val_s * min(1, MAX_IMAGES / num_val) + train_s * min(1, MAX_IMAGES / num_train)

    def _time_steps(self, trainer: L.Trainer, pl_module: L.LightningModule) -> tuple[float, int]:
        """Return (mean seconds of a training step with its loading, without the update; steps in an epoch)."""
        data: ImageDataModule = cast("Any", trainer).datamodule
        loader, begin_s, count = data.train_dataloader(), time.monotonic(), 0
        num_steps, until_s = len(loader), begin_s + MEASURED * 60 * self._minutes
        own_devices = [pl_module.device] if pl_module.device.type == "cuda" else []
        with evaluating(pl_module), cast("Any", torch.random).fork_rng(own_devices):
            # as in training, for which a net is compiled, but batch norm's statistics stay as they are
            for layer in pl_module.modules():
                layer.training = not has_statistics(layer)
            for index, batch in enumerate(loader):
                batch = data.finish(data.transfer_batch_to_device(batch, pl_module.device, 0), training=True)
                output: Any = trainer.strategy.training_step(batch, index)
                output["loss"].backward()
                pl_module.zero_grad()  # as after an update: a compiled net's CUDA graph overwrites earlier gradients
                output["loss"].item()  # wait for the device
                # the same number on all ranks, because they exchange gradients
                is_late = trainer.strategy.broadcast(time.monotonic() > until_s)
                if index < WARM_UP < num_steps and not is_late:
                    begin_s = time.monotonic()
                    continue
                count += 1
                if is_late or count == MOST_STEPS:
                    break
        step_s = (time.monotonic() - begin_s) / max(count, 1)
        loader.close()
        return step_s, num_steps

    def _apply(self, trainer: L.Trainer) -> None:
        after_s = self._measured["val_s"] + self._closing_s(trainer)  # a validation follows
        self.limit_s = 60 * self._minutes * GUARD - after_s
        trainer.fit_loop.max_epochs = self._chosen["max_epochs"]
        trainer.limit_train_batches = self._chosen["limit_train_batches"]
        if self._first_averaged and (average := find_callback(trainer, WeightAverage)):
            average.start_epoch = self._first_averaged(self._chosen["max_epochs"])

    def state_dict(self) -> dict[str, Any]:
        return {**self._chosen, "measured": self._measured, "asked": [self._minutes, self._most]}

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if not (stored := checkpoint["callbacks"].get(self.state_key)):
            return
        self._chosen = {name: stored[name] for name in ("max_epochs", "limit_train_batches")}
        self._measured = stored["measured"]
        if stored["asked"] == [self._minutes, self._most]:
            self._apply(trainer)
            return
        position = checkpoint[KEY]
        is_between = position["kind"] == "epoch_end"
        done = 0 if is_between else position["images"] / max(position["step_images"], 1)
        self._choose(trainer, position["epoch"] + is_between, done)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def _slowest(trainer: L.Trainer, *seconds: float) -> list[float]:
    """Return each time on the rank where it is the longest. Call on all ranks."""
    measured = torch.tensor(seconds, dtype=torch.float32, device=trainer.strategy.root_device)
    slowest: Any = trainer.strategy.reduce(measured, reduce_op="max")  # pyright: ignore[reportUnknownMemberType]
    return slowest.tolist()


def choose_length(
    left_s: float, step_s: float, num_steps: int, val_s: float, most: int | None = None
) -> tuple[int, float]:
    """Return (number of epochs, share of the steps of each, to be rounded down) of the longest training that takes at
    most left_s seconds, with a validation after each epoch; (0, 1.0) if only a few steps would fit. most: the highest
    number of epochs; None or -1 for any."""

    def steps_of_each(epochs: int) -> int:
        return min(int((left_s / epochs - val_s) / step_s), num_steps)

    fitting = max(left_s / (num_steps * step_s + val_s), 0.0)
    counts = {max(math.floor(fitting), 1), max(math.ceil(fitting), 1)}
    epochs = max(counts, key=lambda count: count * steps_of_each(count))
    if most is not None and 0 <= most < epochs:
        epochs = most
    steps = steps_of_each(epochs) if epochs else 0
    if epochs * steps < min(LEAST_STEPS, num_steps):
        return 0, 1.0
    # half a step more, because Lightning rounds the number of steps down: int(29 / 100 * 100) is 28
    return epochs, min((steps + 0.5) / num_steps, 1.0)
