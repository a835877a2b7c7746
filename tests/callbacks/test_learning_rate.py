"""The log announces the learning rates with which a run really trains, and explains a jump on resume."""

import math
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from imagenet_ddp.callbacks.learning_rate import LearningRate
from imagenet_ddp.config.schema.schedules import ScheduleConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.models.lr_schedules import schedule_spanning

SCHEDULE = {"warmup_epochs": 0}


def a_trainer(
    batches: int, accumulate: int, max_epochs: int = 3, max_steps: int = -1, *, lr: float = 1.0, **other: Any
):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    defaults = {"global_step": 0, "current_epoch": 0, "fit_loop": SimpleNamespace(batch_idx=-1), "callbacks": []}
    return SimpleNamespace(
        **{**defaults, **other}, num_training_batches=batches, accumulate_grad_batches=accumulate,
        max_epochs=max_epochs, max_steps=max_steps, optimizers=[optimizer],
    )  # fmt: skip


def started(trainer: Any, said: list[str], before: float | None = None, **keys: Any) -> LearningRate:
    """before: rate of the last step in the checkpoint."""
    schedule = to_config({**SCHEDULE, **keys}, ScheduleConfig)
    rate = LearningRate(spanning=partial(schedule_spanning, schedule, 0.0), say=said.append)
    rate.on_fit_start(trainer, cast("Any", None))
    if before:
        trainer.optimizers[0].param_groups[0]["lr"] = before
    rate.on_train_start(trainer, cast("Any", None))
    return rate


def rates_of(rate: LearningRate, trainer: Any, num_steps: int) -> list[float]:
    found = []
    for epoch in range(trainer.max_epochs):
        trainer.current_epoch = epoch
        for batch in range(0, trainer.num_training_batches, trainer.accumulate_grad_batches):
            rate.on_train_batch_start(trainer, cast("Any", None), None, batch)
            found.append(trainer.optimizers[0].param_groups[0]["lr"])
    return found[:num_steps]


@pytest.mark.parametrize("keys", [{"name": "cosine"}, {"name": "linear", "warmup_steps": 3}, {"interval": "epoch"}])
@pytest.mark.parametrize(("batches", "accumulate", "max_steps"), [(5, 4, -1), (9, 4, 7), (10, 1, 12)])
def test_the_announced_rates_are_those_of_the_run(keys: dict[str, Any], batches: int, accumulate: int, max_steps: int):
    trainer, said = a_trainer(batches, accumulate, max_steps=max_steps), list[str]()
    num_steps = 3 * math.ceil(batches / accumulate) if max_steps < 0 else max_steps
    real = rates_of(started(trainer, said, **keys), trainer, num_steps)
    peak = max(real)
    between = f"at most {peak:.3g} (step {real.index(peak) + 1}), " if peak > 1.001 * max(real[0], real[-1]) else ""
    expected = f"{real[0]:.3g} in step 1, {between}{real[-1]:.3g} in step {num_steps}, the last."
    assert said == [f"Learning rate: {expected}"]


@pytest.mark.parametrize(("batches", "accumulate"), [(7, 1), (33, 4)])
def test_keys_in_steps_count_at_exactly_that_step(batches: int, accumulate: int):
    steps = math.ceil(batches / accumulate)
    for step in range(2, 5 * steps):
        trainer = a_trainer(batches, accumulate, 5)
        keys: dict[str, Any] = {"warmup": "constant", "warmup_start": 0.5, "warmup_steps": 1, "milestone_steps": [step]}
        real = rates_of(started(trainer, [], name="multistep", **keys), trainer, 5 * steps)
        assert real == pytest.approx([0.5] + [1.0] * (step - 1) + [0.1] * (5 * steps - step))


def test_each_group_keeps_its_share_of_the_rate():
    trainer: Any = a_trainer(4, 1)
    trainer.optimizers[0].add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 5.0})
    rate = LearningRate(lambda epochs: 1 / (1 + epochs))
    rate.on_fit_start(trainer, cast("Any", None))
    rate.on_train_batch_start(trainer, cast("Any", None), None, 2)
    assert [group["lr"] for group in trainer.optimizers[0].param_groups] == pytest.approx([1 / 1.5, 5 / 1.5])


def test_the_end_does_not_depend_on_the_steps_of_earlier_epochs():
    """A resume after five epochs of 40 steps, with larger steps, of which 50 are left, 10 per epoch."""
    trainer = a_trainer(10, 1, 100, 250, global_step=200, current_epoch=5, fit_loop=SimpleNamespace(batch_idx=-1))
    rate = started(trainer, [], name="linear")
    rates = rates_of(rate, SimpleNamespace(**{**vars(trainer), "max_epochs": 10}), 100)
    assert rates[99] == pytest.approx(1 - 9.9 / 10)


def resumed(before: float, *, lr: float = 1.0, accumulate: int = 1, **keys: Any) -> list[str]:
    said = list[str]()
    trainer = a_trainer(5, accumulate, 5, lr=lr, global_step=4 * math.ceil(5 / accumulate), current_epoch=4)
    started(trainer, said, before, **keys)
    return said[1:]


def test_a_jump_of_the_rate_is_reported():
    last = (1 + math.cos(math.pi * 3.8 / 5)) / 2
    assert resumed(last, name="cosine") == []
    assert resumed((1 + math.cos(math.pi * 3.5 / 5)) / 2, accumulate=4, name="cosine") == []
    [line] = resumed(0.02, name="cosine")
    assert line.startswith("The learning rate jumps from 0.02 to 0.0955, because optim.*, the batch, ")
    assert line.endswith("set schedule.name=constant optim.lr=0.02 optim.reference_batch=null.")
