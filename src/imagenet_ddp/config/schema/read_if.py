"""Declare which keys are read only while other keys have certain values, and report a typed key that nothing reads.

Keys of a source, optimizer, schedule or loss that is not chosen need no condition here: the class of the chosen one
does not have them. Only typed keys are reported: a recipe or a checkpoint may hold values for choices that the command
line replaces. null and none mean that the key is not set.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema import keys
from imagenet_ddp.config.schema.commands import USE_MODEL
from imagenet_ddp.config.schema.keys import Key
from imagenet_ddp.config.schema.optimizers import OPTIMIZERS
from imagenet_ddp.config.section import OneOf, leaves
from imagenet_ddp.config.validators import AUTO, NULL, Kind, choice, is_nothing, kind, number, shown
from imagenet_ddp.mistakes import Fix, Mistake, key_of, without, without_effect


@dataclass(frozen=True)
class Condition:
    """At least one of these keys must have a value of this kind. example: a value that makes the key count."""

    keys: tuple[str, ...]
    allowed: Kind
    example: str

    @property
    def words(self) -> str:
        return f"{' or '.join(self.keys)} is {self.allowed.words}"

    @property
    def options(self) -> tuple[str, ...]:
        """Return what to type so that the condition holds."""
        key = self.keys[0]
        group, _, last = key.rpartition(".")
        is_file = last == "name" and (conf_dir() / group / f"{self.example}.yaml").is_file()
        return tuple(f"{group if is_file else key}={self.example}".split())

    @property
    def is_sure(self) -> bool:
        """Whether no other value makes the condition hold."""
        return self.allowed.forms == (self.example,)

    def holds(self, values: Mapping[str, Any]) -> bool:
        """values: path -> value. A key that this command does not have restricts nothing."""
        return any(key not in values or self.allowed.accepts(values[key]) for key in self.keys)


def _one_of(key: str, *options: str) -> Condition:
    return Condition((key,), choice(*options), options[0])


def _set(key: str, example: str) -> Condition:
    return Condition((key,), kind("set", lambda value: value is not None), example)


def _unset(key: str) -> Condition:
    return Condition((key,), NULL, "null")


def _above_0(example: str, *keys: str) -> Condition:
    return Condition(keys, number(above=0), example)


def _keys(group: str, names: str) -> tuple[str, ...]:
    return tuple(f"{group}.{name}" for name in names.split())


def _of(group: str, names: str, *conditions: Condition) -> dict[str, tuple[Condition, ...]]:
    """Return the same conditions for several keys of a group."""
    return dict.fromkeys(_keys(group, names), conditions)


_MIXED = _above_0("0.2", "data.mixup_alpha", "data.cutmix_alpha", "loss.label_smoothing")
# lars and lamb scale the rate of each layer that decays
_BY_WEIGHTS = [name for name, each in OPTIMIZERS.items() if each.scales_by_weights]
_DECAYS = Condition(("optim.weight_decay", "optim.name"), number(above=0) | choice(*_BY_WEIGHTS), "0.0001")
_CROPS = _one_of("data.augment", "crop", "pad_crop")
_OF_LIBRARY = _unset("model._target_")
_WARMUP = Condition(("schedule.warmup_epochs", "schedule.warmup_steps"), AUTO | number(above=0), "auto")
_PACK = _one_of("prepare.name", "pack", "import")

CONDITIONS: dict[str, tuple[Condition, ...]] = {
    **_of("data", "val_fold", _set("data.val_fraction", "0.2")),
    **_of("data", "val_resize", _one_of("data.fit", "crop")),
    **_of("data", "crop_scale", _one_of("data.augment", "crop")),
    **_of("data", "pad", _one_of("data.augment", "pad_crop")),
    **_of("data", "flip train_size progressive_start", _CROPS),
    **_of("data", "progressive_epochs", _set("data.progressive_start", "128"), _CROPS),
    **_of("data", "policy_ops policy_magnitude", _one_of("data.policy", "randaugment", "augmix")),
    **_of("data", "autoaugment", _one_of("data.policy", "autoaugment")),
    **_of("data", "erasing_fill", _above_0("0.25", "data.erasing")),
    **_of("data", "mix_probability", _above_0("0.2", "data.mixup_alpha", "data.cutmix_alpha")),
    **_of("data", "bad_image_limit", _one_of("data.on_bad_image", "skip")),
    **_of("model", "library drop_path zero_init_last", _OF_LIBRARY),
    **_of("model", "unfreeze_epoch", _one_of("model.freeze", "backbone")),
    **_of("optim", "reference_batch", _one_of("optim.scaling", "auto", "linear", "sqrt")),
    **_of("optim", "scaling", _set("optim.reference_batch", "256")),
    **_of("optim", "no_decay_on", _DECAYS),
    **_of("schedule", "milestones", _unset("schedule.milestone_steps")),
    **_of("schedule", "warmup_epochs", _unset("schedule.warmup_steps")),
    **_of("schedule", "warmup warmup_start", _WARMUP),
    "loss.bce_threshold": (_MIXED,),
    **_of("teacher", "name library share temperature", _set("teacher.weights", "DEFAULT")),
    **_of("averaging", "decay warmup every_n_steps", _one_of("averaging.name", "ema")),
    **_of("averaging", "start_epoch", _one_of("averaging.name", "ema", "swa")),
    **_of("strategy", "process_group_backend find_unused_parameters bucket_cap_mb static_graph "
                      "gradient_as_bucket_view forward_sync_buffers init_sync comm_hook",
          _one_of("strategy.name", "auto", "ddp")),
    **_of("strategy", "first_device_batch", _one_of("strategy.name", "balanced_dp")),
    **_of("trainer", "gradient_clip_algorithm", _above_0("1.0", "trainer.gradient_clip_val")),
    **_of("tune", "num_random_trials", _one_of("tune.sampler", "tpe")),
    **_of("tune", "pruner_num_trials pruner_num_epochs", _one_of("tune.pruner", "median")),
    **_of("prepare", "num_workers timeout_s", _one_of("prepare.name", "pack", "import", "check")),
    **_of("prepare", "short_side form shard_mib", _PACK),
    **_of("prepare", "quality", _PACK, _one_of("prepare.form", "jpeg")),
    "archive_dir": (_one_of("prepare.name", "imagenet", "import"),),
    **dict.fromkeys(("labels", "names"), (_one_of("prepare.name", "import"),)),
    **dict.fromkeys(("decisions", "unlabelled", "undo"), (_one_of("prepare.name", "relabel"),)),
    **_of("benchmark", "num_images", _one_of("benchmark.name", "loader", "train")),
    **_of("benchmark", "num_workers short_side quality", _one_of("benchmark.name", "loader")),
    **_of("benchmark", "num_steps", _one_of("benchmark.name", "step", "train")),
}  # fmt: skip


# Groups and keys that only a training reads. Commands that read a checkpoint take what they need from it.
OF_TRAINING = (
    "transform", "optim", "schedule", "loss", "module", "teacher", "averaging", "callbacks",
    *_keys("data", "augment crop_scale pad flip policy policy_ops policy_magnitude autoaugment color_jitter grayscale "
                   "blur erasing erasing_fill cutout vflip rot90 sampling repeats mixup_alpha cutmix_alpha "
                   "mix_probability train_size progressive_start progressive_epochs shuffle_window_shards"),
    *_keys("model", "freeze unfreeze_epoch batch_norm head drop_path zero_init_last activation_checkpointing"),
    *_keys("trainer", "max_epochs min_epochs max_steps min_steps max_time limit_train_batches val_check_interval "
                      "check_val_every_n_epoch num_sanity_val_steps accumulate_grad_batches gradient_clip_val "
                      "gradient_clip_algorithm detect_anomaly reload_dataloaders_every_n_epochs batch_finder"),
)  # fmt: skip
_OF_TRAINING = tuple(f"{path}." for path in OF_TRAINING)
TRAIN = ("train", "doctor", "tune", "submit", "benchmark")  # commands that train, or speak of a training
# Groups and keys that no command reads whose images are files, not a data set, and which runs in one process.
_NOT_OF_FILES = tuple(
    f"{path}."
    for path in (
        "strategy", "nccl", "logger", "trainer.num_nodes",
        *_keys("cluster", "name address node_rank rank local_rank world_size job_id secret_file timeout_s requeue"),
        *_keys("data", "train_dir val_dir images_dir val_fraction val_fold groups fold download verify cache_dir "
                       "cache_gib"),
    )
)  # fmt: skip


@functools.cache
def read_by(command: str) -> Mapping[str, Key]:
    """Return the keys that a command has a use for. It has all groups, so that a checkpoint can fill them in."""
    others = () if command in TRAIN else _OF_TRAINING
    others += _NOT_OF_FILES if command in USE_MODEL else ()
    others += ("data.root.",) if command in USE_MODEL and command != "export" else ()
    return {path: key for path, key in keys.declared(command).items() if not f"{path}.".startswith(others)}


def unread(typed: Sequence[str], config: Mapping[str, Any], declared: Mapping[str, Key]) -> list[Mistake]:
    """Return a mistake for each typed key that nothing reads. typed: the options as typed. config: the plain config."""
    values, found = leaves(config), list[Mistake]()
    if "checkpoint" in declared:
        found += [
            Mistake(
                f"{option} has no effect, because only training reads {path}",
                (path,),
                (without_effect(option),),
                "type it for `python -m imagenet_ddp.train`",
            )
            for path in OF_TRAINING
            for option in typed
            if _touches(option, path) and not option.endswith("=null")
        ]
        declared = {path: key for path, key in declared.items() if not f"{path}.".startswith(_OF_TRAINING)}
    found += _of_other_choices(typed, config, declared)
    for path, conditions in CONDITIONS.items():
        if (
            path not in declared
            or values.get(path) in (None, "none")
            or not any(_sets(option, path) for option in typed)
        ):
            continue
        if failed := [each for each in conditions if not each.holds(values)]:
            key = failed[0].keys[0]
            options = tuple(option for each in failed for option in each.options)
            fixes = Fix(options, is_example=not all(each.is_sure for each in failed)), without(path)
            if _is_off(declared[path], shown(values[path])):
                fixes = (without_effect(path),)
            # as typed, because a refused value is the default in config
            said = [f"{path}={shown(values[path])}", *(word.lstrip("+") for word in typed if key_of(word) == path)][-1]
            found.append(
                Mistake(
                    f"{said} has no effect, because it is read only if {failed[0].words}, and {key} is "
                    f"{shown(values[key])}",
                    (path, *(name for each in failed for name in each.keys)),
                    fixes,
                )
            )
    return found


def _of_other_choices(typed: Sequence[str], config: Mapping[str, Any], declared: Mapping[str, Key]) -> list[Mistake]:
    """Return a mistake for each typed key that the choice in its group does not have, but another one."""
    found: list[Mistake] = []
    for path, key in declared.items():
        group, _, name = path.rpartition(".")
        chosen = config.get(group)
        if not isinstance(chosen, OneOf) or name in chosen:
            continue
        words = [each for each in typed if _touches(each, path) and each not in (f"{path}=null", f"{path}=none")]
        if not words:
            continue
        option, _, value = words[-1].lstrip("+").partition("=")
        if option == group:  # optim={momentum:0.5}
            option, value = path, "VALUE"
        own = f"{group}._target_"
        if chosen.target:
            is_ours = chosen.target.startswith("imagenet_ddp.")
            fixes = (without(option) if is_ours else Fix((f"+{group}.args.{name}={value}",), (path,)),)
            why = f"{own}={chosen.target} gets its arguments from {group}.args"
        else:
            needed = _set(own, declared[own].example)
            if key.readers:
                needed = Condition((f"{group}.name",), kind(key.reader_words, key.readers.__contains__), key.readers[0])
            why = f"it is read only if {needed.words}, and {group}.name is {chosen.name}"
            fixes = (Fix(needed.options, is_example=not needed.is_sure), without(option))
            if value != "VALUE" and any(_sets(each, f"{group}.name") or key_of(each) == group for each in typed):
                fixes = fixes[::-1]  # the choice was meant
            if _is_off(key, value):
                fixes = (without_effect(option),)
        keys = (path, own if chosen.target else f"{group}.name")
        said = option if value == "VALUE" else f"{option}={value}"
        found.append(Mistake(f"{said} has no effect, because {why}", keys, fixes))
    return found


def _is_off(key: Key, value: str) -> bool:
    """Return whether a typed value turns a thing off, which then needs no choice that has it. 0 does so for an amount
    that is usually more; elsewhere it may be a number of something, or the end of a scale."""
    is_amount = key.type in (int, float) and key.default and key.allowed is not None and key.allowed.accepts(0)
    return is_nothing(value) or (bool(is_amount) and re.fullmatch(r"0*\.?0*", value) is not None)


def _touches(option: str, path: str) -> bool:
    """Return whether a typed option sets a key, or one below it."""
    return _sets(option, path) or key_of(option).startswith(f"{path}.")


def _sets(option: str, path: str) -> bool:
    """Return whether a typed option sets a key: optim.momentum=0.5, or optim={momentum:0.5}."""
    group, _, last = path.rpartition(".")
    value = option.partition("=")[2].lstrip()
    return key_of(option) == path or (key_of(option) == group and value.startswith("{") and f"{last}:" in value)
