import re
from typing import Any

import pytest
import timm
import torchvision

from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.config.schema.run import CommonConfig, RunConfig
from imagenet_ddp.config.schema.schedules import SCHEDULES
from imagenet_ddp.config.section import to_config
from imagenet_ddp.models.check_learning import validate
from imagenet_ddp.models.check_nets import CLASSIFIERS
from imagenet_ddp.models.timm_names import is_of_timm, names, nearest


def config(**typed: Any) -> CommonConfig:
    """The defaults with optim__lr=... laid over."""
    values: dict[str, dict[str, Any]] = {}
    for key, value in typed.items():
        group, _, name = key.partition("__")
        values.setdefault(group, {})[name] = value
    return to_config(values, CommonConfig)


def test_the_names_are_torchvisions():
    assert list(CLASSIFIERS) == torchvision.models.list_models(module=torchvision.models)


def test_the_names_of_timm_are_read_without_importing_it(monkeypatch: pytest.MonkeyPatch):
    assert names() >= {*timm.list_models()} and all(map(timm.is_model, names()))
    assert nearest("vit_small", timm.list_models())[0].startswith("vit_small")
    monkeypatch.setattr("imagenet_ddp.models.timm_names.names", frozenset)  # not installed
    of_timm = "tf_efficientnet_lite0", "vit_small_patch16_224", "resnet50d", "convnext_tiny.in12k_ft_in1k"
    assert all(map(is_of_timm, of_timm)) and not any(map(is_of_timm, [*CLASSIFIERS, "resnet19", "my_net"]))
    assert "set model.library=timm." in str(validate(config(model__name="resnet50d"))[0])
    assert not any("net of timm, got" in str(each) for each in validate(config(model__library="timm", model__name="x")))


@pytest.mark.parametrize(
    "typed",
    [
        {},
        {"model__name": "mine", "model___target_": "mypkg.Net"},
        {"model___target_": "mypkg.with_its_own_weights", "model__freeze": "backbone", "model__batch_norm": "frozen"},
        {"model___target_": "mypkg.Net", "model__weights": "mine.pth", "model__head": "regression"},
        {"optim__name": "adam", "optim___target_": "torch.optim.Adam", "optim__args": {"weight_decay": 0.1}},
        {"schedule__interval": "epoch", "schedule__warmup_epochs": 0},
        *(
            {
                "averaging__name": "ema",
                "averaging__start_epoch": start,
                "trainer__max_epochs": most,
                "trainer__max_steps": 50,
            }
            for start, most in ((None, -1), (3, -1), (3, None), (3, 4), (0, 0))
        ),
        {"averaging__name": "swa", "averaging__start_epoch": 3, "trainer__max_epochs": -1, "trainer__max_steps": 50},
    ],
)
def test_well(typed: dict[str, Any]):
    assert validate(config(**typed)) == []


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"teacher__weights": "DEFAULT", "teacher__name": "resnet0"}, "teacher.name must be a classifier"),
    ({"optim__name": "adamm"}, "got adamm. Hint: set optim.name=adam, or optim._target_"),
    (
        {"optim__args": {"lr": 0.5}},
        "optim.args.lr must be set as optim.lr, got 0.5. Hint: set optim.lr=0.5 and leave optim.args.lr out.",
    ),
    ({"optim__args": {"weight_decay": 0.5}}, "optim.args.weight_decay must be set as optim.weight_decay, got 0.5."),
    ({"model___target_": "mypkg.Net", "model__weights": "DEFAULT"}, "Hint: set model.weights=FILE, or"),
    ({"model___target_": "mypkg.Net", "model__head": "regression"}, "Hint: set model.weights=FILE, or model.head=new."),
    ({"averaging__name": "ema", "trainer__precision": "bf16-true"}, "Hint: set trainer.precision=bf16-mixed."),
    ({"averaging__name": "ema", "averaging__start_epoch": 3, "trainer__max_epochs": 3}, "than trainer.max_epochs (3)"),
    (
        {"averaging__name": "swa", "trainer__max_epochs": None, "trainer__max_steps": 50},
        "which is null, unless averaging.start_epoch is set. Hint: for example, set ",
    ),
    ({"schedule__name": "cosine", "trainer__max_epochs": -1}, "schedule.name=cosine depends on the end of training"),
    ({"schedule__warmup": "constant"}, "schedule.warmup=constant keeps the learning rate at schedule.warmup_start"),
    ({"schedule__interval": "epoch", "schedule__warmup_epochs": 2}, "until the second epoch, but schedule.warm"),
    (
        {"loss__name": "bce", "loss__bce_threshold": 0, "loss__label_smoothing": 0.1},
        "every image would belong to all classes",
    ),
]


@pytest.mark.parametrize(("typed", "said"), MISTAKES)
def test_one_mistake(typed: dict[str, Any], said: str):
    (text,) = map(str, validate(config(**typed)))
    assert said in text and "Hint: " in text


# What does not need a number of epochs that is known before.
FOLLOWS = {
    "budget_min": "it chooses", "trainer.max_epochs": "the most that it may choose",
    "trainer.max_steps": "ends the run before", "val_log_every_n_steps": "a log", "trainer.log_every_n_steps": "a log",
    "trainer.check_val_every_n_epoch": "the last state is validated", "trainer.num_sanity_val_steps": "before training",
    "trainer.reload_dataloaders_every_n_epochs": "changes no weights", "averaging.every_n_steps": "from the first step",
    "schedule.warmup_epochs": "at most a quarter of the run", "schedule.warmup_steps": "at most a quarter of the run",
    "data.progressive_epochs": "is read with data.progressive_start only",
    "schedule.step_epochs": "of a schedule that is refused", "schedule.milestones": "of a schedule that is refused",
    "schedule.milestone_steps": "of a schedule that is refused",
    "trainer.limit_val_batches": "is measured", "trainer.accumulate_grad_batches": "is measured",
}  # fmt: skip


def test_an_option_in_epochs_or_steps_follows_the_epochs_of_the_budget_or_is_refused():
    counts = [key for key in declared("train") if re.search("epoch|step|milestone|progressive|_batches", key)]
    assert set(FOLLOWS) <= {*counts, "budget_min"}
    refused = set[str]()
    for path in counts:
        made = RunConfig(budget_min=3.0)
        made.model.weights, made.schedule = "DEFAULT", SCHEDULES["cosine"]()
        group, _, name = path.rpartition(".")
        setattr(made[group] if group else made, name, 64)
        refused |= {path} & {key for mistake in validate(made) if "budget_min" in mistake.keys for key in mistake.keys}
    assert refused.isdisjoint(FOLLOWS) and set(counts) - refused <= set(FOLLOWS)
    for name, schedule in SCHEDULES.items():
        made = RunConfig(budget_min=3.0)
        made.model.weights, made.schedule = "DEFAULT", schedule()
        said = "".join(map(str, validate(made)))
        assert ("Hint: set schedule.name=cosine" in said) == schedule.at_epochs == (name in ("step", "multistep"))


def test_keys_that_hang_together_wait_for_the_checkpoint():
    typed = config(schedule__warmup_epochs=91.0, optim__lr=-1.0)
    assert [str(text).split()[0] for text in validate(typed, partial=True)] == ["optim.lr"]
