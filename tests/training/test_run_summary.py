"""What is said at the start of a run on one's own images."""

import math
from pathlib import Path

import pytest
import torch
from helpers.plans import plan_of

from imagenet_ddp.training.run_summary import batch_norm_lines
from imagenet_ddp.training.start_report import from_scratch_lines, mirrored_class_lines


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
