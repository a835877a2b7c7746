"""Every key is declared once, completely."""

import re

import yaml
from omegaconf import MISSING

from imagenet_ddp.config.keys import declared, validate_group
from imagenet_ddp.config.schema.commands import COMMANDS

KEYS = {key.path: key for command in COMMANDS for key in declared(command).values() if not key.is_group}


def test_each_key_has_a_meaning_a_default_and_an_example_that_are_allowed():
    for key in KEYS.values():
        assert re.fullmatch(r"\S.*[^.]\.", key.meaning), key
        if key.allowed is not None and key.default != MISSING:
            example = key.example if key.example.startswith("[") else re.sub(r"[ ,][ (a-z].*", "", key.example)
            is_text = key.type is str and example != "null"
            assert key.allowed.accepts(example if is_text else yaml.safe_load(example.replace("1e-4", "0.0001"))), key
            assert key.path.startswith("trainer.") or "${" in str(key.default) or key.allowed.accepts(key.default), key


def test_a_group_reports_each_value_that_is_not_allowed():
    values = {"batch_size": 0, "fold": None, "num_workers": "many", "flip": 0.5, "unknown": 1}
    assert validate_group("data", values) == [
        "data.batch_size must be an integer ≥ 1, got 0. Hint: set data.batch_size=32.",
        "data.num_workers must be auto or an integer ≥ 0, got many. Hint: set data.num_workers=auto.",
    ]


def test_a_commands_own_keys_are_a_group():
    assert validate_group("", {"format": "csv", "top_k": 5, "name": "x"}, "predict") == []
    (text,) = validate_group("", {"format": "txt"}, "predict")
    assert text == "format must be csv or jsonl, got txt. Hint: set format=csv."
