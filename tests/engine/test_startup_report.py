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


@pytest.mark.parametrize(
    ("typed", "line", "others"),
    [
        ((), "Learning rate: 0.1 per 32 images × 64/32 = 0.2.", []),
        (("model.freeze=backbone",),
         "Learning rate of the last layer, the only one that is trained: 0.1 per 32 images × 64/32 = 0.2.", []),
        (("model.freeze=backbone", "optim.lr_head=0.5"),
         "Learning rate of the last layer, the only one that is trained: 0.5 per 32 images × 64/32 = 1.", []),
        (("model.freeze=backbone", "optim.lr_head=0.5", "optim.reference_batch=null"),
         "Learning rate of the last layer, the only one that is trained: 0.5, not scaled (optim."
         "reference_batch=null).", []),
        (("model.freeze=backbone", "model.unfreeze_epoch=2", "optim.lr_head=0.5"),
         "Learning rate: 0.1 per 32 images × 64/32 = 0.2.",
         ["Learning rate of the last layer: 5 times that of the others."]),
    ],
)  # fmt: skip
def test_the_learning_rate_is_that_of_the_trained_layers(
    typed: tuple[str, ...], line: str, others: list[str], folder: list[str]
) -> None:
    plan = plan_of(*folder, "optim.lr=0.1", "optim.reference_batch=32", *typed)
    assert startup_report.learning_rate_line(plan) == line
    assert startup_report.learning_lines(plan.config, 0) == others


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


def test_other_lines_name_the_same_learning_rate(folder: list[str]) -> None:
    typed = ["model.freeze=backbone", "optim.lr=0.1", "optim.lr_head=0.5", "optim.reference_batch=32"]
    plan = plan_of(*folder, *typed, "trainer.max_epochs=1", "schedule.warmup_epochs=2", update_before=32,
                   keep_update=False)  # fmt: skip
    assert "learning rate changes with it from 0.5 to 1." in startup_report.batch_lines(plan)[1]
    assert " reaches only 50 % of 1. " in startup_report.long_warmup_lines(plan)[0]


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
    ("typed", "steps"),
    [
        (("trainer.max_steps=30",), 3),
        (("trainer.max_steps=-1",), 2 * 7),
        (("trainer.max_steps=3000",), 2 * 7),
        (("trainer.max_steps=30", "trainer.limit_train_batches=2"), 3),
        (("trainer.max_steps=300", "trainer.limit_train_batches=2"), 2 * 2),
    ],
)
def test_the_announced_warmup_is_that_of_a_run_that_ends_with_max_steps(
    typed: tuple[str, ...], steps: int, folder: list[str]
) -> None:
    keys = ("optim.lr=0.1", "optim.reference_batch=8", "data.batch_size=16", "trainer.max_epochs=20")
    plan = plan_of(*folder, *keys, "trainer.accumulate_grad_batches=1", "schedule.warmup_epochs=auto", *typed)
    epochs, reason = startup_report.warmup_of_run(plan, 100)
    per_epoch = 2 if "trainer.limit_train_batches=2" in typed else 7
    assert epochs * per_epoch == pytest.approx(steps)
    assert ("a tenth of trainer.max_steps=30" in reason) == (steps == 3)


@pytest.mark.parametrize(
    ("typed", "words"),
    [((), "× 0.1 at epochs 30, 60"), (("schedule.milestone_steps=[500,900]",), "× 0.1 at steps 500, 900")],
)
def test_the_milestones_are_those_that_are_used(typed: tuple[str, ...], words: str, folder: list[str]) -> None:
    plan = plan_of(*folder, "schedule.name=multistep", "schedule.milestones=[30,60]", *typed)
    assert startup_report._schedule_words(plan.config["schedule"], 0) == words
