import inspect
from typing import Any

import pytest
from omegaconf import OmegaConf

from imagenet_ddp.config import validators
from imagenet_ddp.config.conf_dir import conf_dir
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


def test_the_defaults_are_accepted():
    assert validate_group("trainer", DEFAULTS) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("devices", 2),
        ("devices", -1),
        ("devices", [0, 3]),
        ("devices", "0,3"),
        ("devices", "2"),
        ("max_epochs", -1),
        ("max_epochs", None),
        ("limit_train_batches", 3),
        ("limit_train_batches", 0.5),
        ("limit_train_batches", 1.0),
        ("max_time", "00:12:00:00"),
        ("max_time", {"hours": 12}),
        ("fast_dev_run", True),
        ("fast_dev_run", 3),
        ("deterministic", "warn"),
        ("gradient_clip_val", 1),
        ("accelerator", "mps"),
    ],
)
def test_what_lightning_takes_is_accepted(key: str, value: object):
    assert validate_group("trainer", {key: value}) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("devices", 0),
        ("devices", True),
        ("devices", []),
        ("devices", [0, 0]),
        ("devices", "all"),
        ("num_nodes", 0),
        ("max_epochs", -2),
        ("max_epochs", "abc"),
        ("max_epochs", 2.5),
        ("max_epochs", True),
        ("limit_val_batches", 1.5),
        ("limit_val_batches", -1),
        ("accumulate_grad_batches", 0),
        ("precision", "bf15"),
        ("accelerator", "tpu"),
        ("benchmark", "yes"),
        ("benchmark", 1),
        ("gradient_clip_val", float("nan")),
        ("max_time", "1h"),
        ("profiler", "all"),
    ],
)
def test_another_kind_is_one_mistake(key: str, value: object):
    (text,) = validate_group("trainer", {key: value})
    assert text.startswith(f"trainer.{key} must be ")
    assert f", got {validators.shown(value)}. Hint: set trainer.{key}=" in text


@pytest.mark.parametrize("key", trainer.REFUSED)
def test_a_refused_key_says_what_to_set_instead(key: str):
    text = trainer.refusal(key, "ddp")
    reason = "has no effect, because " if key.startswith("limit_") else "is set by this project. Hint: "
    assert text.startswith(f"trainer.{key} {reason}") and "Hint: " in text
    assert "{" not in text


def test_strategy_is_answered_with_the_group():
    assert "Hint: set strategy=ddp." in trainer.refusal("strategy", "ddp")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (validators.integer(1, 9), "an integer from 1 to 9"),
        (validators.number(above=0, most=1), "a number > 0 and ≤ 1"),
        (validators.number(), "a number"),
        (validators.choice("a", "b", "c") | validators.NULL, "a, b, c or null"),
        (validators.AUTO, "auto"),
    ],
)
def test_kinds_in_words(kind: validators.Kind, words: str):
    assert kind.words == words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ([0, 3], "[0,3]"),
        ({"a": False}, "{a:false}"),
        ("x", "x"),
        ("", "empty"),
        (1.0, "1.0"),
        ("1.10", "1.10"),
    ],
)
def test_values_are_shown_as_they_are_typed(value: object, text: str):
    assert validators.shown(value) == text


@pytest.mark.parametrize(("value", "text"), [("8", '"8"'), (["0", "x", "true", 1], '["0",x,"true",1]')])
def test_text_that_looks_like_a_number_is_refused_with_quotes(value: object, text: str):
    assert validators.expect("devices", value, validators.integer(), "")[0].endswith(f"got {text}. Hint: set .")
