"""Choose the length of a fine-tuning so that the run ends when its time is up (budget_min)."""

import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Timer

from imagenet_ddp import BEGIN_S
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.models.head import evaluating
from imagenet_ddp.system.text import count_noun, duration, percent

GUARD = 1.1  # share of the budget after which training stops, even within an epoch, if the steps became slower
MEASURED = 0.04  # share of the budget that is spent on timing steps
WARM_UP, MOST_STEPS = 2, 50  # the first steps are slower; no more steps are timed
# or an epoch, if it has fewer: 10 and 17 steps on 480 photographs kept and lowered the top-1 of the regression
LEAST_STEPS = 100
CLOSING_S = 4.0  # writing the checkpoint, the curves and the summary


class TimeBudget(Timer):
    """After the validation of the weights before the first step (loop_state.validates_start), time steps that do not
    change the weights. From both times, choose the number of epochs, and the share of the images that each epoch uses.
    If the time is too short for LEAST_STEPS, train nothing. A resumed run keeps the choice.

    minutes: from the start of this process. say: writes a line to the log. Must precede callbacks that read
    trainer.max_epochs.
    """

    def __init__(self, minutes: float, say: Callable[[str], None]):
        super().__init__(timedelta(minutes=GUARD * minutes), verbose=False)
        self._minutes, self._say = minutes, say
        self._chosen: dict[str, Any] = {}  # attribute of the trainer -> value
        self._val_begin_s = 0.0

    def time_elapsed(self, stage: str = "train") -> float:
        """Return the seconds since this process began."""
        return time.monotonic() - BEGIN_S

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        trainer.num_sanity_val_steps = math.inf  # type: ignore[attr-defined]

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._val_begin_s = time.monotonic()

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        val_s = time.monotonic() - self._val_begin_s
        step_s, num_steps = self._time_steps(trainer, pl_module)
        left_s = 60 * self._minutes - self.time_elapsed() - CLOSING_S
        measured = torch.tensor([-left_s, step_s, val_s], device=pl_module.device)
        slowest: Any = trainer.strategy.reduce(measured, reduce_op="max")  # pyright: ignore[reportUnknownMemberType]
        late_s, step_s, val_s = map(float, slowest.tolist())
        epochs, share = choose_length(-late_s, step_s, num_steps, val_s, trainer.max_epochs)
        self._chosen = {"max_epochs": epochs, "limit_train_batches": share}
        self._apply(trainer)
        images = "all images" if share == 1 else f"{percent(share, 0)} of the images"
        what = f"{count_noun(epochs, 'epoch')} of {images}" if epochs else "no epoch, so the start is the result"
        self._say(
            f"budget_min={self._minutes:g} allows {what}: {duration(60 * self._minutes + late_s)} have passed, a step "
            f"takes {step_s:.3g} s, an epoch of all images {count_noun(num_steps, 'step')}, and a validation "
            f"{val_s:.3g} s."
        )

    def _time_steps(self, trainer: L.Trainer, pl_module: L.LightningModule) -> tuple[float, int]:
        """Return (mean seconds of a training step with its loading, without the update; steps in an epoch)."""
        data: ImageDataModule = cast("Any", trainer).datamodule
        loader, begin_s, count = data.train_dataloader(), time.monotonic(), 0
        num_steps, until_s = len(loader), begin_s + MEASURED * 60 * self._minutes
        with evaluating(pl_module):  # batch norm's statistics stay as they are
            for index, batch in enumerate(loader):
                batch = data.finish(data.transfer_batch_to_device(batch, pl_module.device, 0), training=True)
                output: Any = trainer.strategy.training_step(batch, index)
                output["loss"].backward()
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
        pl_module.zero_grad()
        return step_s, num_steps

    def _apply(self, trainer: L.Trainer) -> None:
        trainer.fit_loop.max_epochs = self._chosen["max_epochs"]
        trainer.limit_train_batches = self._chosen["limit_train_batches"]

    def state_dict(self) -> dict[str, Any]:
        return dict(self._chosen)

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if chosen := checkpoint["callbacks"].get(self.state_key):
            self._chosen = chosen
            self._apply(trainer)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def choose_length(
    left_s: float, step_s: float, num_steps: int, val_s: float, most: int | None = None
) -> tuple[int, float]:
    """Return (number of epochs, share of the steps of each) of the longest training that takes at most left_s seconds,
    with a validation after each epoch; (0, 1.0) if only a few steps would fit. most: the highest number of epochs; None
    or -1 for any."""

    def steps_of_each(epochs: int) -> int:
        return min(int((left_s / epochs - val_s) / step_s), num_steps)

    fitting = max(left_s / (num_steps * step_s + val_s), 0.0)
    counts = {max(math.floor(fitting), 1), max(math.ceil(fitting), 1)}
    epochs = max(counts, key=lambda count: count * steps_of_each(count))
    if most is not None and 0 <= most < epochs:
        epochs = most
    steps = steps_of_each(epochs) if epochs else 0
    return (epochs, steps / num_steps) if epochs * steps >= min(LEAST_STEPS, num_steps) else (0, 1.0)
