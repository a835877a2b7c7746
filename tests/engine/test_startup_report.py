"""The lines on learning rates and on the average of the weights at the start of a run."""

from pathlib import Path

import pytest
from helpers.plans import plan_of

from imagenet_ddp.engine import startup_report


@pytest.fixture
def folder(tree: Path) -> list[str]:
    return [
        "data=imagefolder",
        f"data.root={tree}",
        "model.name=mobilenet_v3_small",
        "model.weights=DEFAULT",
        "data.batch_size=64",
    ]


def test_learning_rates(folder: list[str]) -> None:
    plan = plan_of(*folder, "optim.lr=0.1", "optim.reference_batch=32", "optim.lr_head=0.5")
    assert startup_report.learning_rate_line(plan) == "Learning rate: 0.1 per 32 images × 64/32 = 0.2."
    assert startup_report.learning_lines(plan.config, 0) == [
        "Learning rate of the last layer: 5 times that of the others."
    ]


@pytest.mark.parametrize(
    ("typed", "num_images", "is_said"),
    [
        ((), 3000, True),
        (("data=imagefolder",), 20_000, False),
        (("model.weights=DEFAULT",), 3000, False),
        (("+model.args.width_mult=0.5",), 3000, False),
        (("data=shapes", "data.root=null"), 3000, False),
    ],
)
def test_few_photographs_without_weights_are_told_of_finetuning(
    typed: tuple[str, ...], num_images: int, is_said: bool, folder: list[str]
) -> None:
    words = [] if "data=shapes" in typed else [word for word in folder if not word.startswith("model.weights")]
    lines = startup_report.from_scratch_lines(plan_of(*words, *typed).config, num_images)
    assert [line.endswith("Hint: set experiment=finetune.") for line in lines] == [True] * is_said


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
    lines = startup_report.mirrored_class_lines(plan_of(*folder, *typed).config.data, classes)
    assert [line.endswith("Hint: set data.flip=0.") for line in lines] == [True] * is_said


@pytest.mark.parametrize(
    ("name", "steps", "how"),
    [
        ("ema", 1, "exponential, decay (1 + n) / (10 + n) in update n but at most 0.9, after every step"),
        ("ema", 5, "exponential, decay (1 + n) / (10 + n) in update n but at most 0.9, every 5 steps"),
        ("swa", 1, "equal, at the end of each epoch"),
    ],
)
def test_how_the_weights_are_averaged(name: str, steps: int, how: str, folder: list[str]) -> None:
    averaging = [f"averaging.name={name}"]
    if name == "ema":
        averaging += [f"averaging.every_n_steps={steps}", "averaging.decay=0.9"]
    plan = plan_of(*folder, *averaging)
    assert startup_report.learning_lines(plan.config, 0) == [
        f"Average of the weights, validated and stored: {how}, from epoch 1."
    ]


@pytest.mark.parametrize(
    ("typed", "words"),
    [((), "× 0.1 at epochs 30, 60"), (("schedule.milestone_steps=[500,900]",), "× 0.1 at steps 500, 900")],
)
def test_the_milestones_are_those_that_are_used(typed: tuple[str, ...], words: str, folder: list[str]) -> None:
    plan = plan_of(*folder, "schedule.name=multistep", "schedule.milestones=[30,60]", *typed)
    assert startup_report._schedule_words(plan.config["schedule"], 0) == words
