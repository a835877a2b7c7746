"""Validate a composed config: every key, value, folder, launcher and class, without torch."""

import dataclasses
import os
import re
import shlex
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp.cli.compose import first_sentence
from imagenet_ddp.cli.known_terms import unknown
from imagenet_ddp.config import keys
from imagenet_ddp.config.keys import Key
from imagenet_ddp.config.read_if import unread
from imagenet_ddp.config.schema import commands
from imagenet_ddp.config.schema.commands import CommonConfig, EvaluateConfig, ExportConfig, PredictConfig
from imagenet_ddp.config.schema.trainer import REFUSED, refusal
from imagenet_ddp.config.section import to_config
from imagenet_ddp.config.validators import shown
from imagenet_ddp.data import check_data
from imagenet_ddp.distributed import check_launch
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.export import formats
from imagenet_ddp.models import check_learning
from imagenet_ddp.runs import check_run
from imagenet_ddp.system import table_files

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
    refused: Set[str] = frozenset(),
) -> tuple[list[str], LaunchInfo | None]:
    """Return the mistakes in a composed config (unknown keys, values, folders, launcher, classes named by _target_),
    and the launcher around this command if it is recognised.

    config: without the hydra node. typed: the options as typed, for the commands in hints. partial: a checkpoint fills
    in the options that are not typed, so keys of data and learning are checked only one by one. elsewhere: the options
    are for other machines, whose GPUs and disks are unknown here. refused: groups whose typed choice is a mistake; what
    follows from the default that the config has in its place is not reported.
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
    undeclared = _undeclared(plain, declared)
    found += undeclared
    values = to_config(plain, commands.COMMANDS[verb])
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
    if isinstance(values, PredictConfig):
        found += table_files.validate(values.format, values.out)
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
    if refused:
        found = [*undeclared, *_without_consequences(found, refused, values, verb, typed)]
    found += refused_targets(values, values.allow_targets or []) + (_long_tmpdir(environ) if not elsewhere else [])
    return found, launch_info


def _without_consequences(
    found: Sequence[str], refused: Set[str], values: CommonConfig, verb: str, typed: Sequence[str]
) -> list[str]:
    """Return the mistakes that do not depend on the refused choices: those that name only typed keys of other groups,
    and those in values that no choice allows."""
    declared, chosen = keys.declared(verb), set(map(keys.key_of, typed))
    groups = refused
    if refused & {"data", "recipe", "experiment"}:  # recipes follow from data, and set keys of any group
        groups = {path.partition(".")[0] for path in declared if "." in path} | {"callbacks", "logger"}
    if "data.root" in chosen:
        chosen |= {"data.train_dir", "data.val_dir"}  # folders below it
    alone = {text for each in groups & declared.keys() for text in keys.validate_group(each, values[each], verb)}
    of_groups = "|".join(map(re.escape, groups))
    names = re.compile(rf"\b(?:{of_groups})(?:(?:\.\w+)+|(?==))")

    def depends(text: str) -> bool:
        named = names.findall(text.partition("Hint: ")[0])
        return any(name not in chosen or name.partition(".")[0] in refused for name in named)

    return [text for text in found if text in alone or not depends(text)]


def _of_files(config: CommonConfig, elsewhere: bool) -> list[str]:
    """Return a mistake if images= or real_labels= names nothing that can be read."""
    if isinstance(config, PredictConfig | ExportConfig) and config.images is not None:
        from imagenet_ddp.data.sources.image_files import validate_images

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


def _undeclared(node: Mapping[str, Any], declared: Mapping[str, Key], prefix: str = "") -> list[str]:
    """Return a mistake for each key that is not declared, which +KEY=VALUE adds."""
    found: list[str] = []
    for key, value in node.items():
        path = f"{prefix}{key}"
        if prefix == "trainer." and key in REFUSED:
            found.append(refusal(key, value))
        elif path not in declared:
            found.append(unknown(path, declared))
        elif declared[path].is_group:
            found += _undeclared(value, declared, f"{path}.")
    return found


def refused_targets(node: Any, extra: Sequence[str], path: str = "") -> list[str]:
    """Report each _target_ outside the allowed packages."""
    found = []
    if isinstance(node, Mapping):
        target = node.get("_target_")
        allowed = [*ALLOWED_TARGETS, *extra]
        if target is not None and not any(f"{target}.".startswith(f"{each}.") for each in allowed):
            package = str(target).partition(".")[0]
            allow = shlex.quote(f"allow_targets={shown([*extra, package])}")
            found.append(
                f"{path}_target_ must begin with one of {', '.join(allowed)}, "
                f"got {target}. Hint: if you trust that package, add `{allow}`."
            )
        for key, value in node.items():
            found += refused_targets(value, extra, f"{path}{key}.")
    elif isinstance(node, list):
        for number, value in enumerate(node):
            found += refused_targets(value, extra, f"{path}{number}.")
    return found
