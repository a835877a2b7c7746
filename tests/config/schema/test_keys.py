"""Every key is declared once, completely, and those of the trainer are Lightning's."""

import inspect
import pickle
import re
from typing import Any

import pytest
import yaml
from omegaconf import MISSING, OmegaConf

from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.keys import declared, of_class, validate_group
from imagenet_ddp.config.schema.losses import LossConfig
from imagenet_ddp.config.schema.optimizers import OptimConfig
from imagenet_ddp.config.schema.schedules import ScheduleConfig
from imagenet_ddp.config.schema.trainer import REFUSED, TrainerConfig
from imagenet_ddp.config.section import WITH_ARGS, OneOf, to_config, to_plain
from imagenet_ddp.config.validators import shown
from imagenet_ddp.data.sources.registry import SOURCES

KEYS = {key.path: key for command in COMMANDS for key in declared(command).values() if not key.is_group}


def test_each_key_has_a_meaning_a_default_and_an_example_that_are_allowed():
    for key in KEYS.values():
        assert re.fullmatch(r"\S.*[^.]\.", key.meaning), key
        if key.allowed is not None and key.default != MISSING:
            example = key.example if key.example.startswith("[") else re.sub(r"[ ,][ (a-z].*", "", key.example)
            is_text = key.type is str and example != "null"
            assert key.allowed.accepts(example if is_text else yaml.safe_load(example.replace("1e-4", "0.0001"))), key
            assert key.path.startswith("trainer.") or "${" in str(key.default) or key.allowed.accepts(key.default), key


def test_the_two_tables_are_lightnings_keys():
    from lightning.pytorch import Trainer

    accepted = set(TrainerConfig())
    assert accepted | REFUSED.keys() == set(inspect.signature(Trainer).parameters) | {"batch_finder"}
    assert not accepted & REFUSED.keys()


def test_each_group_that_names_a_class_of_the_user_is_listed():
    named = {path.removesuffix("._target_") for path in KEYS if path.endswith("._target_")}
    assert named == set(WITH_ARGS) and all(f"{group}.args" in KEYS for group in named)


def test_precisions_are_lightnings_and_auto():
    from lightning.fabric.plugins.precision import precision

    lightnings = {*precision._PRECISION_INPUT_STR.__args__, *precision._PRECISION_INPUT_STR_ALIAS.__args__}
    kind = KEYS["trainer.precision"].allowed
    assert kind is not None and set(kind.forms) == lightnings | {"auto"}
    assert all(kind.accepts(value) for value in (*lightnings, 16, 32, 64, "auto"))


def test_conf_lists_every_key_of_the_trainer_with_its_default():
    listed: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / "trainer" / "default.yaml"))
    assert list(listed.items()) == list(to_plain(TrainerConfig()).items())
    assert validate_group("trainer", listed) == []


@pytest.mark.parametrize(
    ("key", "accepted", "refused"),
    [
        ("devices", [2, -1, [0, 3], "0,3", "2"], [0, True, [], [0, 0], "all"]),
        ("max_epochs", [-1, None], [-2, "abc", 2.5, True]),
        ("limit_train_batches", [3, 0.5, 1.0], [1.5, -1]),
        ("max_time", ["00:12:00:00", {"hours": 12}], ["1:30"]),
        ("gradient_clip_val", [1], [float("nan")]),
        ("benchmark", [None, True], ["yes", 1]),
    ],
)
def test_what_lightning_takes_is_accepted(key: str, accepted: list[Any], refused: list[Any]):
    assert [validate_group("trainer", {key: value}) for value in accepted] == [[]] * len(accepted)
    for value in refused:
        (text,) = map(str, validate_group("trainer", {key: value}))
        assert text.startswith(f"trainer.{key} must be ")
        assert f", got {shown(value)}. Hint: for example, set trainer.{key}=" in text or key == "benchmark"


@pytest.mark.parametrize("group", [DataConfig, OptimConfig, ScheduleConfig, LossConfig])
def test_a_choice_keeps_its_own_keys(group: type[OneOf]):
    everything = to_plain(group.any_of())
    for name, cls in group.by_name.items():
        chosen = to_config({**everything, "name": name}, group)
        assert type(chosen) is cls and chosen == cls() and type(pickle.loads(pickle.dumps(chosen))) is cls
        # what several choices have is of one kind in all, as the layers of a config are laid over each other
        for key, value in chosen.items():
            kinds = [of_class(each, "")[key] for each in (cls, group)]
            assert key == "name" or (kinds[0].words == kinds[1].words and value == everything[key]), (name, key)
    assert type(to_config({**everything, "_target_": "mine.Own"}, group)) is group.own
    assert type(to_config({"name": "gone"}, group)) is group.any_of


def test_code_cannot_set_a_key_that_the_choice_does_not_have():
    assert DataConfig.of(name="stl10", fold=1)["fold"] == 1
    with pytest.raises(TypeError, match="ImageFolderData has no fold"):
        DataConfig.of(name="imagefolder", fold=1)


def test_the_sources_with_keys_are_those_that_are_read():
    assert list(DataConfig.by_name) == list(SOURCES)


def test_the_name_of_ones_own_source_is_free():
    assert not validate_group("data", {"name": "arrays", "_target_": "mine.Own"})
    assert len(validate_group("data", {"name": "arrays"})) == 1


def test_values_are_shown_as_they_are_typed():
    values = [None, True, [0, 3], {"a": False}, "x", "", 1.0, "1.10"]
    assert [*map(shown, values)] == ["null", "true", "[0,3]", "{a:false}", "x", "empty", "1.0", "1.10"]
