"""The length of a fine-tuning that must end in time."""

import copy
import csv
import json
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from conftest import SMALL, Run
from helpers.hints import hint_of, options_of
from torch import nn

from imagenet_ddp.callbacks.time_budget import LEAST_STEPS, TimeBudget, choose_length


@pytest.mark.parametrize("left_s", [-5.0, 9.0, 30.0, 101.0, 1e6])
@pytest.mark.parametrize(("step_s", "num_steps", "val_s"), [(0.5, 60, 10.0), (2.0, 5, 0.1), (0.01, 100_000, 200.0)])
def test_the_chosen_epochs_take_the_time_that_is_left(left_s: float, step_s: float, num_steps: int, val_s: float):
    epochs, share = choose_length(left_s, step_s, num_steps, val_s)
    steps = int(share * num_steps)  # as Lightning rounds
    if epochs:
        assert 0 < steps <= num_steps
        assert epochs * (steps * step_s + val_s) <= left_s + 1e-6, "too late"
    else:
        assert left_s - val_s < min(LEAST_STEPS, num_steps) * step_s, "steps would have fitted"
    for other in range(1, 60):  # no other number of epochs trains more
        fitting = min(int((left_s / other - val_s) / step_s), num_steps)
        assert other * fitting <= max(epochs * steps + max(epochs, other), LEAST_STEPS), (other, fitting)
    assert choose_length(left_s, step_s, num_steps, val_s, most=1)[0] <= 1


def test_the_share_of_the_images_loses_no_step():
    for num_steps in (7, 29, 100, 300):
        for steps in range(7, num_steps + 1):
            epochs, share = choose_length(steps + 0.01, 1.0, num_steps, 0.0, most=1)
            assert (epochs, int(share * num_steps)) in ((1, steps), (0, num_steps)) and (epochs or steps < LEAST_STEPS)


@pytest.mark.parametrize(("num_steps", "step_s", "val_s"), [(7, 4.5, 2.0), (900, 0.3, 40.0), (1, 0.01, 0.0)])
def test_minutes_in_which_nothing_is_trained_are_told_with_those_that_suffice(
    num_steps: int, step_s: float, val_s: float
):
    def said(minutes: float, most: int = -1) -> str:
        lines = list[str]()
        budget = TimeBudget(minutes, time.monotonic() - 27, lines.append)
        budget._measured, budget._most = {"num_steps": num_steps, "step_s": step_s, "val_s": val_s}, most
        strategy = SimpleNamespace(root_device="cpu", reduce=lambda seconds, reduce_op: seconds)
        trainer: Any = SimpleNamespace(strategy=strategy, fit_loop=SimpleNamespace())
        budget._choose(trainer)
        return lines[0]

    words = said(0.01)
    assert "allows no epoch" in words and "0:27 have passed" in words
    key, _, minutes = options_of(words)[0].partition("=")
    assert key == "budget_min" and "allows no epoch" not in said(float(minutes))
    assert hint_of(said(0.01, most=0)) == ""


class Loader(list[torch.Tensor]):
    def close(self) -> None: ...


def test_steps_are_timed_as_they_are_trained_and_leave_no_trace():
    """In training mode, for which a net is compiled; neither batch norm's statistics nor the random numbers change."""
    module: Any = L.LightningModule()
    module.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).eval()
    modes, before = [], copy.deepcopy(module.state_dict())

    def step(batch: torch.Tensor, index: int) -> dict[str, torch.Tensor]:
        modes.append([layer.training for layer in (module.net, *module.net)])
        assert all(parameter.grad is None for parameter in module.parameters()), "an earlier step's gradients are kept"
        return {"loss": module.net(batch).sum()}

    loader = Loader(torch.randn(4, 2, 3))
    data = SimpleNamespace(train_dataloader=lambda: loader, transfer_batch_to_device=lambda batch, *_: batch,
                           finish=lambda batch, training: batch)  # fmt: skip
    trainer: Any = SimpleNamespace(datamodule=data, strategy=SimpleNamespace(training_step=step, broadcast=bool))
    random = torch.get_rng_state()
    step_s, num_steps = TimeBudget(1.0, 0.0, print)._time_steps(trainer, module)
    assert step_s > 0 and num_steps == 4 and modes == [[True, True, False, True]] * 4
    assert torch.equal(torch.get_rng_state(), random) and not any(layer.training for layer in module.net.modules())
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.slow
def test_a_run_keeps_to_its_minutes_and_a_resumed_run_to_the_choice(
    run: Run, tree: Path, seven_class_weights: Path, tmp_path: Path
):
    """With an hour, epochs up to trainer.max_epochs; with a second, none."""
    base = (*SMALL, f"data.root={tree}", f"model.weights={seven_class_weights}", "model.head=regression",
            "model.batch_norm=frozen", "optim.lr=3", "trainer.max_epochs=5", "trainer.devices=2",
            "schedule.name=cosine")  # fmt: skip
    short = run("train", *base, "budget_min=0.016", "hydra.run.dir=short", code=0)
    assert "budget_min=0.016 allows no epoch, so the start is the result: " in short.stdout
    assert "all that the time allows (" in short.stdout
    assert "(epoch 0: regression on frozen features)." in short.stdout and "Nothing was trained" not in short.stdout
    closing = re.search(r"The time \(budget_min\) was too short to train, .* To train it: `(.*)`", short.stdout)
    assert closing
    assert closing[1].endswith(
        f"train resume=short budget_min={json.loads((tmp_path / 'short/summary.json').read_text())['least_budget_min']}"
    )
    typed = closing[1].partition(".train ")[2].split()
    report = run("report", "short", code=0)
    assert "was too short to train" in report.stdout and "(0 epochs)" in report.stdout
    trained = run("train", *typed, code=0)
    assert "epoch 1/" in trained.stdout and "was too short" not in trained.stdout

    long = run("train", *base, "budget_min=60", "hydra.run.dir=long", code=0)
    assert (
        "Recipe: at most 5 epochs" in long.stdout
        and "budget_min=60 allows 5 epochs, each a pass over all images, which trainer.max_epochs=5 limits: "
        in long.stdout
    )
    assert [row["epoch"] for row in rows(tmp_path / "long")] == list("012345")
    first = torch.load(tmp_path / "long/checkpoints/best.ckpt", weights_only=True)  # of epoch 0: the rate is too high

    shutil.copytree(tmp_path / "long", tmp_path / "again", ignore=shutil.ignore_patterns("summary.json", "last.ckpt"))
    first["callbacks"]["TimeBudget"] |= {"max_epochs": 2, "limit_train_batches": 0.5}
    torch.save(first, tmp_path / "again/checkpoints/best.ckpt")
    again = run("train", "resume=again/checkpoints/best.ckpt", code=0)
    assert "budget_min=60 allows" not in again.stdout
    steps = [[int(row["step"]) for row in rows(tmp_path / name)] for name in ("long", "again")]
    assert steps[1] == [0, steps[0][1] // 2, steps[0][1] // 2 * 2]
    assert all(row["val/top1"] for row in rows(tmp_path / "again"))


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
