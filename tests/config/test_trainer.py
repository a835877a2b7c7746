import inspect
from typing import Any

import pytest
from omegaconf import OmegaConf

from imagenet_ddp.config import conf_dir, validators
from imagenet_ddp.config.keys import declared, validate_group
from imagenet_ddp.config.schema import trainer
from imagenet_ddp.config.section import to_plain

DEFAULTS: dict[str, Any] = dict(OmegaConf.load(conf_dir() / "trainer" / "default.yaml"))  # type: ignore[call-overload]


def test_the_two_tables_are_lightnings_keys():
    from lightning.pytorch import Trainer

    lightnings = set(inspect.signature(Trainer).parameters)
    accepted = set(trainer.TrainerConfig())
    assert accepted | trainer.REFUSED.keys() == lightnings | {"batch_finder"}
    assert not accepted & trainer.REFUSED.keys()


def test_precisions_are_lightnings_and_auto():
    from lightning.fabric.plugins.precision import precision

    lightnings = {*precision._PRECISION_INPUT_STR.__args__, *precision._PRECISION_INPUT_STR_ALIAS.__args__}
    kind = declared("train")["trainer.precision"].allowed
    assert kind is not None
    assert set(kind.forms) == lightnings | {"auto"}
    assert all(kind.accepts(value) for value in (*lightnings, 16, 32, 64, "auto"))


def test_conf_lists_every_key_with_its_default():
    assert list(DEFAULTS.items()) == list(to_plain(trainer.TrainerConfig()).items())
    assert validate_group("trainer", DEFAULTS) == []


ACCEPTED: dict[str, list[Any]] = {
    "devices": [2, -1, [0, 3], "0,3", "2"], "max_epochs": [-1, None], "limit_train_batches": [3, 0.5, 1.0],
    "max_time": ["00:12:00:00", {"hours": 12}], "fast_dev_run": [True, 3], "deterministic": ["warn"],
    "gradient_clip_val": [1], "accelerator": ["mps"],
}  # fmt: skip
REFUSED: dict[str, list[Any]] = {
    "devices": [0, True, [], [0, 0], "all"], "num_nodes": [0], "max_epochs": [-2, "abc", 2.5, True],
    "limit_val_batches": [1.5, -1], "accumulate_grad_batches": [0], "precision": ["bf15"], "accelerator": ["tpu"],
    "benchmark": ["yes", 1], "gradient_clip_val": [float("nan")], "max_time": ["1h"], "profiler": ["all"],
}  # fmt: skip


@pytest.mark.parametrize("key", ACCEPTED)
def test_what_lightning_takes_is_accepted(key: str):
    assert [validate_group("trainer", {key: value}) for value in ACCEPTED[key]] == [[]] * len(ACCEPTED[key])


@pytest.mark.parametrize("key", REFUSED)
def test_another_kind_is_one_mistake(key: str):
    for value in REFUSED[key]:
        (text,) = validate_group("trainer", {key: value})
        assert text.startswith(f"trainer.{key} must be ")
        assert f", got {validators.shown(value)}. Hint: set trainer.{key}=" in text


def test_a_refused_key_says_what_to_set_instead():
    for key in trainer.REFUSED:
        text = trainer.refusal(key, "ddp")
        reason = "has no effect, because " if key.startswith("limit_") else "is set by this project. Hint: "
        assert text.startswith(f"trainer.{key} {reason}") and "Hint: " in text and "{" not in text
    assert "Hint: set strategy=ddp." in trainer.refusal("strategy", "ddp")


def test_values_are_shown_as_they_are_typed():
    values = [None, True, [0, 3], {"a": False}, "x", "", 1.0, "1.10"]
    assert [*map(validators.shown, values)] == ["null", "true", "[0,3]", "{a:false}", "x", "empty", "1.0", "1.10"]
