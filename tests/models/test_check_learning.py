from typing import Any

import pytest
import torchvision

from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.models.check_learning import CLASSIFIERS, validate


def config(**typed: Any) -> CommonConfig:
    """The defaults with optim__lr=... laid over."""
    made = CommonConfig()
    for key, value in typed.items():
        group, _, name = key.partition("__")
        setattr(made[group], name, value)
    return made


def test_the_names_are_torchvisions():
    assert list(CLASSIFIERS) == torchvision.models.list_models(module=torchvision.models)


@pytest.mark.parametrize(
    "typed",
    [
        {},
        {"model__name": "mine", "model___target_": "mypkg.Net"},
        {"optim__name": "adam", "optim___target_": "torch.optim.Adam", "optim__args": {"weight_decay": 0.1}},
        {"schedule__interval": "epoch", "schedule__warmup_epochs": 0},
    ],
)
def test_well(typed: dict[str, Any]):
    assert validate(config(**typed), {}) == []


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"teacher__weights": "DEFAULT", "teacher__name": "resnet0"}, "teacher.name must be a classifier"),
    ({"optim__name": "adamm"}, "got adamm. Hint: set optim.name=adam, or optim._target_"),
    (
        {"optim__args": {"lr": 0.5}},
        "optim.args.lr must be set as optim.lr, got 0.5. Hint: set optim.lr=0.5 and leave optim.args.lr out.",
    ),
    ({"optim__args": {"weight_decay": 0.5}}, "optim.args.weight_decay must be set as optim.weight_decay, got 0.5."),
    ({"averaging__name": "ema", "trainer__precision": "bf16-true"}, "Hint: set trainer.precision=bf16-mixed."),
    ({"schedule__name": "cosine", "trainer__max_epochs": -1}, "schedule.name=cosine depends on the end of training"),
    ({"schedule__name": "one_cycle", "schedule__warmup_epochs": 2.0}, "the rate would rise twice"),
    ({"schedule__warmup": "constant"}, "schedule.warmup=constant keeps the learning rate at schedule.warmup_start"),
    ({"schedule__interval": "epoch", "schedule__warmup_epochs": 2}, "until the second epoch, but schedule.warm"),
    ({"loss__bce_threshold": 0, "loss__label_smoothing": 0.1}, "every image would belong to all classes"),
]


@pytest.mark.parametrize(("typed", "said"), MISTAKES)
def test_one_mistake(typed: dict[str, Any], said: str):
    (text,) = map(str, validate(config(**typed), {}))
    assert said in text and "Hint: " in text


def test_keys_that_hang_together_wait_for_the_checkpoint():
    typed = config(schedule__warmup_epochs=91.0, optim__lr=-1.0)
    assert [str(text).split()[0] for text in validate(typed, {}, partial=True)] == ["optim.lr"]
