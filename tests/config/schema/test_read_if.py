"""A key that was typed and that nothing reads is refused, with what would make it count."""

import functools
import pickle
import re
from dataclasses import fields
from typing import Any, cast

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from imagenet_ddp.benchmark import __main__ as benchmark
from imagenet_ddp.cli import parse
from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.config.schema.keys import Key, declared
from imagenet_ddp.config.schema.read_if import CONDITIONS, OF_TRAINING, unread
from imagenet_ddp.config.section import OneOf, typed_config
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, key_of, setting, without
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.tune import study_plan

# What makes the condition of a key false, where the defaults do not.
FALSE = {
    "data.val_fold": ["data.name=imagefolder"],
    "data.crop_scale": ["data.augment=none"], "data.flip": ["data.augment=none"],
    "data.train_size": ["data.augment=none"], "data.val_resize": ["data.fit=pad"],
    "data.progressive_start": ["data.augment=none"], "optim.reference_batch": ["optim.scaling=none"],
    "optim.no_decay_on": ["optim.weight_decay=0"],
    "optim.scaling": ["optim.reference_batch=null"], "schedule.warmup_epochs": ["schedule.warmup_steps=5"],
    "schedule.milestones": ["schedule.name=multistep", "schedule.milestone_steps=[5]"],
    "schedule.warmup": ["schedule.warmup_epochs=0"], "schedule.warmup_start": ["schedule.warmup_epochs=0"],
    "tune.num_random_trials": ["tune.sampler=random"],
    "tune.pruner_num_trials": ["tune.pruner=none"], "tune.pruner_num_epochs": ["tune.pruner=none"],
    "loss.bce_threshold": ["loss.name=bce"],
    "model.library": ["model._target_=torchvision.models.resnet18"],
    "model.drop_path": ["model._target_=torchvision.models.resnet18"],
    "model.zero_init_last": ["model._target_=torchvision.models.resnet18"],
}  # fmt: skip
DDP_ONLY = [path for path in CONDITIONS if path.startswith("strategy.") and path != "strategy.first_device_batch"]
FALSE |= {path: ["strategy=dp"] for path in DDP_ONLY}
READ = {"prepare": prepare_options.read, "benchmark": benchmark.read, "tune": study_plan.read}
OF_PREPARE = ("archive_dir", "labels", "names", "decisions", "unlabelled", "undo")


def command_of(path: str) -> str:
    verb = "prepare" if path in OF_PREPARE else path.partition(".")[0]
    return verb if verb in READ else "train"


def typed_value(key: Key) -> str:
    """Return an option for a value of the key other than its default."""
    if key.path == "data.progressive_epochs":
        return "data.progressive_epochs=[1,2]"
    value: Any = key.example.partition(" ")[0]
    value = {"true": "true", "false": "true", "null": "1"}.get(value, value)
    return f"{key.path}={value}"


@functools.cache
def composed(verb: str, *choices: str) -> DictConfig:
    return parse.composed(verb, choices).config


def refused(verb: str, options: list[str]) -> list[str]:
    """Return what is said of these options of a command."""
    return list(map(str, mistakes(verb, options)))


def mistakes(verb: str, options: list[str]) -> list[Mistake]:
    """Return the mistakes in these options of a command. Files are composed once; values are laid over a copy."""
    choices = [each for each in options if re.match(r"[a-z]+=", each) and key_of(each) not in OF_PREPARE]
    config = pickle.loads(pickle.dumps(composed(verb, *choices)))  # a third of the time of a copy
    for path, _, value in (option.partition("=") for option in options if option not in choices):
        OmegaConf.update(config, path, yaml.safe_load(value))
    return unread(options, typed_config(config, COMMANDS[verb], partial=True), declared(verb))


def refusals(verb: str, options: list[str]) -> list[str]:
    """Return what the command itself says."""
    try:
        READ[verb](options, {}) if verb in READ else command_line(verb, options, {})
    except ConfigError as error:
        return list(map(str, error.mistakes))
    return []


def test_every_condition_is_of_a_key():
    known = {path for command in COMMANDS for path in declared(command)}
    assert CONDITIONS.keys() <= known
    assert {key for conditions in CONDITIONS.values() for each in conditions for key in each.keys} <= known


@pytest.mark.parametrize("path", CONDITIONS)
def test_a_typed_key_that_nothing_reads_is_refused(path: str):
    verb = command_of(path)
    option = typed_value(declared(verb)[path])
    other = "imagenet" if path in ("prepare.num_workers", "prepare.timeout_s") else "check"
    mode = {"benchmark.num_steps": "loader", "benchmark.repeats": "profile"}.get(path, "step")
    first = {"prepare": [f"prepare={other}"], "benchmark": [f"benchmark={mode}"]}.get(verb, [])
    [mistake] = mistakes(verb, [*first, *FALSE.get(path, []), option])
    assert mistake.what.startswith(f"{path}=") and "has no effect" in mistake.what
    assert any(condition.words in mistake.what for condition in CONDITIONS[path])
    # the first fix makes it count
    choose, leave_out = mistake.fixes
    assert leave_out.without == (path,)
    others = [each for each in FALSE.get(path, []) if key_of(each) not in map(key_of, choose.options)]
    left = refused(verb, [*first, *others, *choose.options, option])
    assert not [text for text in left if text.startswith(f"{path}=")]
    # as part of a recipe, or unset, it is no mistake
    assert not refused(verb, [*first, *FALSE.get(path, [])])


# Keys that some choices of a group have, and those that all have but a class of the user's own.
OF_CHOICES = [path for path, key in declared("train").items() if key.readers]
OF_CHOICES += ["optim.weight_decay", "schedule.args", "loss.label_smoothing", "loss.class_weights", "loss.args"]


@pytest.mark.parametrize("path", OF_CHOICES)
def test_a_typed_key_that_another_choice_has_is_refused(path: str):
    key, (group, _, name) = declared("train")[path], path.partition(".")
    section: type[OneOf] = declared("train")[group].type
    option = typed_value(key)
    for other in (each for each in section.by_name if key.readers and each not in key.readers):
        [mistake] = mistakes("train", [f"{group}.name={other}", option])
        reason = f"it is read only if {group}.name is {key.reader_words}, and {group}.name is {other}"
        assert mistake.what == f"{option} has no effect, because {reason}"
        leave_out, choose = mistake.fixes
        left = mistakes("train", [*choose.options, option])
        assert leave_out.without == (path,) and not any(f"{group}.name" in each.keys for each in left)
    own = f"{group}._target_=mine.Own"
    if name in {field.name for field in fields(cast("Any", section.own))}:
        assert not mistakes("train", [own, option])
    else:
        [mistake] = mistakes("train", [own, option])
        [fix] = mistake.fixes
        assert (fix.options, fix.without) == ((f"+{group}.args.{option.partition('.')[2]}",), (path,))
    # from a recipe or a checkpoint, it is no mistake
    assert not refused("train", [f"{group}._target_=mine.Own"])


def test_a_key_of_another_source_is_refused_by_each_command_that_opens_images():
    for verb in ("evaluate", "features", "prepare"):
        [mistake] = mistakes(verb, ["data=imagefolder", "data.fold=1"])
        assert mistake.fixes == (setting("data=stl10"), without("data.fold"))[::-1]
    [mistake] = mistakes("evaluate", ["data.shuffle_window_shards=1"])
    assert "only training reads" in mistake.what
    [mistake] = mistakes("train", ["data=arrays", "data.fold=1"])  # whose class accepts no such argument, either
    assert mistake.fixes == (without("data.fold"),)


@pytest.mark.parametrize(
    ("verb", "typed", "key"),
    [
        ("train", "optim=adamw averaging={decay:0.9}", "averaging.decay"),  # also in a mapping
        ("prepare", "prepare=check prepare.quality=80", "prepare.quality"),
        ("benchmark", "benchmark=step benchmark.quality=80", "benchmark.quality"),
        ("tune", "tune.pruner=none tune.pruner_num_epochs=3", "tune.pruner_num_epochs"),
    ],
)
def test_each_command_refuses_it(verb: str, typed: str, key: str):
    assert any(text.startswith(f"{key}=") and "has no effect" in text for text in refusals(verb, typed.split()))


@pytest.mark.parametrize(
    "options",
    [
        ["teacher.name=null"],
        ["optim.scaling=none", "optim.reference_batch=null"],
        ["optim=adamw"],
        ["experiment=pytorch_example"],
    ],
    ids=" ".join,
)
def test_null_none_and_files_are_no_typed_values(options: list[str]):
    assert not [text for text in refusals("train", options) if "has no effect" in text]


@pytest.mark.parametrize("verb", ["evaluate", "predict", "export", "demo"])
def test_commands_that_read_a_checkpoint_refuse_keys_of_training(verb: str):
    typed = ["optim.lr=0.5", "schedule=cosine", "loss.name=bce", "+teacher.weights=DEFAULT", "averaging={decay:0.9}",
             "+callbacks.mine._target_=x.Y", "data.augment=none", "model.freeze=backbone", "trainer.max_epochs=2",
             "trainer={max_steps:3}"]  # fmt: skip
    read = ["optim.lr_head=null", "data.val_resize=256", "data=packed", "trainer.devices=1", "model=timm",
            "trainer.limit_val_batches=2", "trainer={devices:1}"]  # fmt: skip
    found = list(map(str, unread([*typed, *read], {}, declared(verb))))
    assert [text.partition(" has no effect")[0] for text in found] == typed
    assert found[0].startswith(
        "optim.lr=0.5 has no effect, because only training reads optim. Hint: leave optim.lr=0.5 out"
    )
    assert set(OF_TRAINING) <= declared(verb).keys()
    assert not unread(typed[:3], {}, declared("train"))
