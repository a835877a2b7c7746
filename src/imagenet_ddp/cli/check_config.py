"""Validate a composed config: every key, value, folder, launcher and class, without torch."""

import dataclasses
import os
import re
import shlex
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp.cli.explain import first_sentence
from imagenet_ddp.cli.known_terms import unknown
from imagenet_ddp.config import keys
from imagenet_ddp.config.keys import Key
from imagenet_ddp.config.read_if import unread
from imagenet_ddp.config.schema import commands
from imagenet_ddp.config.schema.commands import CommonConfig, EvaluateConfig, ExportConfig, PredictConfig
from imagenet_ddp.config.schema.trainer import REFUSED, refusal
from imagenet_ddp.config.section import Section
from imagenet_ddp.config.validators import shown
from imagenet_ddp.data import check_data
from imagenet_ddp.distributed import check_launch
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.export import formats
from imagenet_ddp.models import check_learning
from imagenet_ddp.runs import check_run

T = TypeVar("T", bound=Section)
# Packages that a _target_ may name. A config is data, and must not be able to call os.system.
ALLOWED_TARGETS = ("imagenet_ddp", "torch", "torchvision", "lightning", "torchmetrics")
MOST_TMPDIR = 75  # bytes; multiprocessing appends /pymp-xxxxxxxx/listener-xxxxxxxx
_MISSING_HINTS = {
    "images": "images=FILE, images=FOLDER, or 'images=FOLDER/*.jpg'",
    "prepare.name": "prepare=imagenet, prepare=pack or prepare=check",
}


def validate(
    config: DictConfig,
    environ: Mapping[str, str],
    verb: str,
    *,
    typed: Sequence[str] = (),
    multirun: bool = False,
    partial: bool = False,
    elsewhere: bool = False,
) -> tuple[list[str], LaunchInfo | None]:
    """Return the mistakes in a composed config (unknown keys, values, folders, launcher, classes named by _target_),
    and the launcher around this command if it is recognised.

    config: without the hydra node. typed: the options as typed, for the commands in hints. partial: a checkpoint fills
    in the options that are not typed, so keys of data and learning are checked only one by one. elsewhere: the options
    are for other machines, whose GPUs and disks are unknown here.
    """
    try:
        plain = _plain(OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException as error:
        hint = "write ${data.name} for the value of a key, or ${oc.env:HOME} for an environment variable."
        return [f"{error.full_key} does not resolve: {first_sentence(error)} Hint: {hint}"], None
    if lacking := [field.name for field in dataclasses.fields(commands.COMMANDS[verb]) if field.name not in plain]:
        hint = "begin the file of --config-name with `defaults: [train, _self_]`."
        return [f"the configuration must have all keys of {verb}, but lacks {', '.join(lacking)}. Hint: {hint}"], None
    declared = keys.declared(verb)
    found = [
        f"{path} is required, but not set. Hint: set {_MISSING_HINTS[path]}."
        for path in OmegaConf.missing_keys(config) & _MISSING_HINTS.keys()
    ]
    values = _fitted(plain, commands.COMMANDS[verb], "", found, declared)
    found += keys.validate_group("trainer", values.trainer)
    if elsewhere and values.trainer.accelerator == "auto":
        values.trainer.accelerator = "gpu"
    # doctor leaves images, devices and launcher to its checks
    of_options = "predict" if verb == "doctor" else verb
    if not partial or verb in ("prepare", "benchmark"):
        found += unread(typed, values, declared)
    found += check_data.validate(values.data, verb=of_options, partial=partial, elsewhere=elsewhere)
    found += _of_files(values, elsewhere)
    found += check_learning.validate(values, environ, partial=partial)
    if verb == "doctor":
        mistakes, launch_info = check_launch.validate_options(values), None
    else:
        mistakes, launch_info = check_launch.validate(
            values, environ, verb=verb, typed=typed, multirun=multirun, elsewhere=elsewhere
        )
    found += mistakes
    elsewhere = elsewhere or (launch_info is not None and check_launch.is_elsewhere(launch_info))
    found += check_run.validate(values, environ, verb=verb, elsewhere=elsewhere)
    found += formats.validate(values, verb) if verb in commands.USE_MODEL else []
    if "checkpoint" in declared and not (values.get("checkpoint") or values.model.weights):
        found.append(
            "checkpoint is required, but not set. Hint: set checkpoint=runs/<name>/<time>/checkpoints/best.ckpt, or "
            "model.name=resnet18 model.weights=DEFAULT."
        )
    elif values.get("checkpoint") and "model.weights" in map(keys.key_of, typed) and values.model.weights:
        found.append(
            f"model.weights must be null beside checkpoint=, whose weights are used, got {values.model.weights}. "
            "Hint: leave model.weights out."
        )
    found += refused_targets(values, values.allow_targets or []) + (_long_tmpdir(environ) if not elsewhere else [])
    return found, launch_info


def _of_files(config: CommonConfig, elsewhere: bool) -> list[str]:
    """Return a mistake if images= or real_labels= names nothing that can be read."""
    if isinstance(config, PredictConfig | ExportConfig) and config.images is not None:
        from imagenet_ddp.data.sources.files import validate_images

        return validate_images(config.images)
    if isinstance(config, EvaluateConfig) and config.real_labels and not elsewhere:
        from imagenet_ddp.data.sources.imagenet import read_reassessed

        try:
            read_reassessed(Path(config.real_labels))
        except ConfigError as error:
            return error.mistakes
    return []


def _long_tmpdir(environ: Mapping[str, str]) -> list[str]:
    """Return a mistake if the sockets of loader processes would have paths that are too long for the system."""
    folder = environ.get("TMPDIR", "")
    if len(os.fsencode(folder)) <= MOST_TMPDIR or not Path(folder).is_dir():  # Python ignores a folder that is missing
        return []
    return [
        f"TMPDIR must have at most {MOST_TMPDIR} bytes, because the paths of Unix sockets are limited to 107, got "
        f"{len(os.fsencode(folder))}: {folder}. Hint: put TMPDIR=/tmp before the command."
    ]


def _plain(value: Any) -> Any:
    """Return plain containers with None for missing values."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return None if value == MISSING else value


def _fitted(node: Mapping[str, Any], cls: type[T], prefix: str, found: list[str], declared: Mapping[str, Key]) -> T:
    """Return the object that holds the node's values, of whatever type. Report unknown keys."""
    fitted: dict[str, Any] = {}
    for key in node:  # +KEY=VALUE adds an undeclared key
        if prefix == "trainer." and key in REFUSED:
            found.append(refusal(key, node[key]))
        elif prefix + str(key) not in declared:
            found.append(unknown(prefix + str(key), declared))
    for field in dataclasses.fields(typing.cast(Any, cls)):
        kind = declared[prefix + field.name].type
        if field.name in node and dataclasses.is_dataclass(kind):
            group, inner = typing.cast("type[Section]", kind), node[field.name]
            inner = inner if isinstance(inner, Mapping) else group()
            fitted[field.name] = _fitted(inner, group, f"{prefix}{field.name}.", found, declared)
        elif field.name in node:
            fitted[field.name] = node[field.name]
    return cls(**fitted)


def refused_targets(node: Any, extra: Sequence[str], path: str = "") -> list[str]:
    """Report each _target_ outside the allowed packages, comparing dotted components."""
    found = []
    if isinstance(node, Mapping):
        target = node.get("_target_")
        if target is not None and not _is_allowed(str(target), extra):
            package = str(target).partition(".")[0]
            allow = shlex.quote(f"allow_targets={shown([*extra, package])}")
            found.append(
                f"{path}_target_ must begin with one of {', '.join([*ALLOWED_TARGETS, *extra])}, "
                f"got {target}. Hint: if you trust that package, add `{allow}`."
            )
        for key, value in node.items():
            found += refused_targets(value, extra, f"{path}{key}.")
    elif isinstance(node, list):
        for number, value in enumerate(node):
            found += refused_targets(value, extra, f"{path}{number}.")
    return found


def _is_allowed(target: str, extra: Iterable[str]) -> bool:
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", target):
        return False
    return any(target.startswith(f"{package}.") or target == package for package in [*ALLOWED_TARGETS, *extra])
