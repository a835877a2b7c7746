"""What is said at the start and the end of a run."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.plans import plan_of

from imagenet_ddp.callbacks.checkpoint import ResumeCheckpoint
from imagenet_ddp.callbacks.train_log import TrainLog
from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.figures import FIGURES_OF
from imagenet_ddp.training import run_summary
from imagenet_ddp.training.run_summary import batch_norm_lines
from imagenet_ddp.training.start_report import far_rate_lines, from_scratch_lines, mirrored_class_lines

UNTRAINED = ("model.weights=null", "model.head=new", "model.batch_norm=train", "model.freeze=null", "budget_min=null")


@pytest.fixture
def folder(tree: Path) -> list[str]:
    return ["data=imagefolder", f"data.root={tree}", "model.name=mobilenet_v3_small"]


@pytest.mark.parametrize(
    ("typed", "num_images", "is_said"),
    [
        ((), 3000, True),
        (("data=imagefolder",), 20_000, False),
        (("model.weights=DEFAULT",), 3000, False),
        (("+model.args.width_mult=0.5",), 3000, False),
    ],
)
def test_few_photographs_without_weights_are_told_of_finetuning(
    typed: tuple[str, ...], num_images: int, is_said: bool, folder: list[str]
) -> None:
    lines = from_scratch_lines(plan_of(*folder, *typed).config, num_images)
    assert [line.endswith("Hint: set experiment=own_photos.") for line in lines] == [True] * is_said


@pytest.mark.parametrize("typed", ["experiment=finetune optim.lr=0.1", "optim=lion optim.lr=0.1 optim.scaling=none"])
def test_a_rate_of_sgd_beside_adamw_is_said_before_the_training(typed: str, folder: list[str]) -> None:
    words = [*folder, *typed.split(), *UNTRAINED]
    (line,) = far_rate_lines(plan_of(*words))
    assert " times that of conf/optim/" in line
    assert not far_rate_lines(plan_of(*words, line.removesuffix(".").split()[-1])), "the hint mends it"


@pytest.mark.parametrize("kind", ["experiment", "optim"])
def test_no_file_of_values_has_a_rate_that_is_far_from_the_usual_one(kind: str, folder: list[str]) -> None:
    for file in (conf_dir() / kind).glob("*.yaml"):
        plan = plan_of(f"{kind}={file.stem}", *folder, *UNTRAINED, "model.library=torchvision", "data.batch_size=256")
        assert not far_rate_lines(plan), file.stem


@pytest.mark.parametrize(
    ("classes", "typed", "is_said"),
    [
        (["Arrow-Left", "arrow-right", "stop"], (), True),
        ([str(number) for number in range(10)], (), True),
        (["left lung", "cat"], (), False),
        (["left", "right"], ("data.flip=0",), False),
        (["left", "right"], ("data.augment=none",), False),
    ],
)
def test_classes_that_a_mirror_swaps_are_named(
    classes: list[str], typed: tuple[str, ...], is_said: bool, folder: list[str]
) -> None:
    lines = mirrored_class_lines(plan_of(*folder, *typed).config.data, classes)
    assert [line.endswith("Hint: set data.flip=0.") for line in lines] == [True] * is_said


@pytest.mark.parametrize(
    ("momentum", "val_loss", "steps", "is_said"),
    [(0.1, 24.0, 8, True), (0.1, 1.9, 8, False), (0.1, 24.0, 44, False), (0.01, 24.0, 44, True), (None, 24.0, 8, False),
     (0.1, float("inf"), 8, True), (0.1, float("nan"), 8, False), (0.1, None, 8, False)],
)  # fmt: skip
def test_few_updates_with_batch_norm_explain_a_high_validation_loss(
    momentum: float | None, val_loss: float | None, steps: int, is_said: bool
) -> None:
    """After the epochs of the hint, a hundredth of the initial averages is left."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4, momentum=momentum))
    lines = batch_norm_lines(net, val_loss, math.log(3), steps, 2)
    assert bool(lines) == is_said
    if lines:
        epochs = int(lines[0].partition("trainer.max_epochs=")[2].partition(",")[0])
        assert momentum
        assert (1 - momentum) ** (epochs * steps / 2) <= 0.01 < (1 - momentum) ** ((epochs - 1) * steps / 2)
    assert batch_norm_lines(net[0], val_loss, math.log(3), steps, 2) == []


@pytest.mark.parametrize(
    ("key", "begun", "said"),
    [("budget_min", 5, "=2 in epoch 5, after 79 steps."), ("budget_min", 4, "=2, after 4 epochs and 79 steps."),
     ("trainer.max_time", 5, " in epoch 5, after 79 steps.")],
)  # fmt: skip
def test_the_end_is_told_with_the_epoch_that_it_cut_short_and_numbers_as_typed(
    key: str, begun: int, said: str, folder: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_summary, "ended_by", lambda *_: key)
    job: Any = SimpleNamespace(config=plan_of(*folder, "model.weights=DEFAULT", "budget_min=2").config)
    log = SimpleNamespace(num_epochs=4, num_begun=begun)
    parts: Any = SimpleNamespace(trainer=SimpleNamespace(global_step=79), train_log=log)
    assert run_summary._end_lines(job, parts) == [f"Ended by {key}{said}"]


@pytest.mark.parametrize(
    ("labels", "best_epoch", "val_step", "said"),
    [("one", 0, 79, "top-1 is 93.75 % at the end (a difference of 1 image of 64). Hint: more photographs or more time "
      "(trainer.max_epochs) may help."), ("several", 0, 79, "mAP is 93.75 % at the end. Hint: "),
     ("one", 1, 79, None), ("one", 0, 0, None)],
)  # fmt: skip
def test_a_training_that_improved_nothing_says_so(
    labels: str, best_epoch: int, val_step: int, said: str | None, folder: list[str]
) -> None:
    score, log = FIGURES_OF[labels][1], TrainLog()
    log.scores, log.val_step = {log.best.monitor: 60 / 64}, val_step
    log.best.value, log.best.epoch = 61 / 64, best_epoch
    job: Any = SimpleNamespace(config=plan_of(*folder).config)
    parts: Any = SimpleNamespace(
        train_log=log, module=SimpleNamespace(task=SimpleNamespace(score=score, guess_loss=1.1), val_counts=(64, 64))
    )
    lines = run_summary._no_gain_lines(job, parts)
    start = "Training did not improve on its start, so the best net is that of epoch 0 (before the first step): val "
    assert [line.startswith(f"{start}{said}") for line in lines] == [True] * (said is not None)


@pytest.mark.parametrize(
    ("monitor", "value", "said"),
    [("val/ece", 0.12, "val/ece (0.12, epoch 1)."), ("val/top5", 0.5, "val/top5 (50.00 %, epoch 1)."),
     ("val/ece", None, None), ("val/top1", 0.5, None), (None, None, None)],
)  # fmt: skip
def test_another_metric_than_the_score_that_selects_the_best_weights_is_named(
    monitor: str | None, value: float | None, said: str | None
) -> None:
    callback = monitor and ResumeCheckpoint(monitor=monitor)
    if callback:
        callback.best.value, callback.best.epoch = value, 1
    parts: Any = SimpleNamespace(checkpoint_callback=callback, train_log=TrainLog())
    assert run_summary._other_best_lines(parts) == ([f"best.ckpt is that of the best {said}"] if said else [])
