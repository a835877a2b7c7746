"""Every key is declared once, completely."""

import re

import pytest
import yaml
from omegaconf import MISSING

from imagenet_ddp.config.keys import Key, declared, validate_group
from imagenet_ddp.config.schema.commands import COMMANDS

KEYS = {key.path: key for command in COMMANDS for key in declared(command).values() if not key.is_group}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_each_key_has_a_meaning_a_default_and_an_example_that_are_allowed(key: Key):
    assert re.fullmatch(r"\S.*[^.]\.", key.meaning), key.meaning
    if key.allowed is not None and key.default != MISSING:
        example = key.example if key.example.startswith("[") else re.sub(r"[ ,][ (a-z].*", "", key.example)
        read = (
            example
            if key.type is str and example != "null"
            else float("1e-4")
            if example == "1e-4"
            else yaml.safe_load(example)
        )
        assert key.allowed.accepts(read), example
        assert key.path.startswith("trainer.") or "${" in str(key.default) or (
            key.allowed.accepts(key.default)
        )  # fmt: skip


def test_a_group_reports_each_value_that_is_not_allowed():
    values = {"batch_size": 0, "fold": None, "num_workers": "many", "flip": 0.5, "unknown": 1}
    assert validate_group("data", values) == [
        "data.batch_size must be an integer ≥ 1, got 0. Hint: set data.batch_size=32.",
        "data.num_workers must be auto or an integer ≥ 0, got many. Hint: set data.num_workers=auto.",
    ]


def test_a_commands_own_keys_are_a_group():
    assert validate_group("", {"format": "csv", "top_k": 5, "name": "x"}, "predict") == []
    (text,) = validate_group("", {"format": "csv"}, "doctor")
    assert text == "format must be text or json, got csv. Hint: set format=json."
