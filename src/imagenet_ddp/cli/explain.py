"""Explain keys that nothing declares, and options that do not fit the composed config. Does not import torch."""

import os
import shlex
from collections.abc import Set
from pathlib import Path
from typing import Any

from imagenet_ddp.cli.explain_words import SEARCH_INSTEAD, as_text, fix_of, simplest, ways_to_read
from imagenet_ddp.cli.flags import of_other_program
from imagenet_ddp.cli.known_terms import INSTEAD, NEAR, SHORT, near_keys, same, term_of
from imagenet_ddp.cli.options import Files, Option
from imagenet_ddp.cli.photograph_lines import OF_FOLDER
from imagenet_ddp.config.paths import FILES
from imagenet_ddp.config.schema import trainer
from imagenet_ddp.config.schema.data import TABLE_SUFFIXES
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.config.schema.read_if import read_by
from imagenet_ddp.config.section import FREE_KEYS
from imagenet_ddp.config.validators import choice, shown
from imagenet_ddp.data.sources.registry import options_for
from imagenet_ddp.errors import causes
from imagenet_ddp.mistakes import Fix, Mistake, example, key_of, meant, must_be, setting, without
from imagenet_ddp.models.check_nets import CLASSIFIERS
from imagenet_ddp.models.timm_names import is_of_timm
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.system.packages import extra_with, missing_package
from imagenet_ddp.system.text import first_sentence


def unknown(key: str, verb: str, value: str = "VALUE") -> Mistake:
    """Return the mistake of typing a key that is not declared. value: as typed."""
    keys = read_by(verb)
    if instead := INSTEAD.get(f"{verb} {key}") or INSTEAD.get(key):
        return Mistake(f"{key} is not a known key", (key,), hint=instead)
    parent, _, last = key.rpartition(".")
    if {each for each in keys if each.startswith(f"{parent}.")} == {f"{parent}._target_", f"{parent}.args"}:
        fix = setting(f"+{parent}.args.{last}={value}", aim=f"for an argument of {parent}._target_")
        return Mistake(f"{key} is not a known key", (key,), (fix,))
    if (term := term_of(key, verb)) and NEAR.get(key) not in keys and not same(key, keys):
        return of_other_program(verb, [f"{key}={value}"], term, [value], key)
    more = " docs/strategies.md lists DistributedDataParallel's arguments" if key.startswith("strategy.") else ""
    fixes = near_keys(key, keys, value, more)
    lists = f"`--help` lists the most used keys, and `--cfg job` all.{more}"
    hint = "type an environment variable before the command" if key.isupper() else lists
    return Mistake(f"{key} is not a known key", (key,), fixes, "" if fixes else hint)


def refused(option: Option, error: Exception, verb: str, files: Files, others: Set[str]) -> Mistake:
    """Explain an option that does not fit the composed config. error: of Hydra, OmegaConf or YAML. others: the other
    options."""
    key, line, value, keys = option.key, option.word, option.value, declared(verb)
    if option.sign == "~":
        what = line.lstrip("~")
        required = f"{what} is required{', or not chosen,' if '=' in what else ''} and cannot be deleted"
        is_known = key in keys or files.names(key)
        return Mistake(required, (key,), (without(line),)) if is_known else unknown(key, verb)
    if option.is_choice:
        names = files.names(key.partition("@")[0])
        if value in names and not option.sign:
            reason, hint = in_file(error, f"{key}/{value}", is_group=key in keys)
            return Mistake(f"{line} cannot be composed: {reason}", (key,), hint=hint)
        return _wrong_choice(key, value, names, verb, others)
    return _refused_value(option, error, verb, files)


def _refused_value(option: Option, error: Exception, verb: str, files: Files) -> Mistake:
    """Explain a key=value that does not fit the composed config."""
    key, line, value, keys = option.key, option.word, option.value, declared(verb)
    declaration = keys.get(key)
    parent, _, last = key.rpartition(".")
    if parent == "trainer" and last in trainer.REFUSED:
        return trainer.refusal(last, value)
    if declaration and option.sign == "+":
        bare = line.lstrip("+")
        return Mistake(f"{line}: {key} exists already", (key,), (setting(bare, aim="without +"),))
    if declaration and declaration.type is str and value and isinstance(value, dict | list):
        typed = as_text(key, line.partition("=")[2])
        fix = Fix((typed,), said=f"put quotes around it: `{shlex.quote(typed)}`", is_meant=True)
        return must_be(key, declaration.words, shown(value), fix)
    if declaration and not isinstance(value, dict):
        fix = fix_of(key, keys, files.names)
        if declaration.type is int and str(value).endswith("%"):
            fix = example(*fix.options, aim="(a number, not a share)")
        fix = declaration.fix_for(value) or fix
        named = keys.get(f"{key}.name")
        if named and named.allowed and (name := value if named.allowed.accepts(value) else named.nearest(value)):
            fix = Fix((f"{key}.name={name}",), (key,), said=f"set {key}.name={name}", is_meant=True)
        return must_be(key, declaration.words, shown(value), fix)
    if declaration or key.startswith("hydra."):
        reason = first_sentence(error.__cause__ or error)
        return Mistake(f"{line} cannot be merged: {reason}", (key,), hint="leave it out, and type each key by itself")
    if key.startswith(FREE_KEYS):
        fix = Fix((f"+{line}",), (key,), said=f"type +{line} to add it")
        return Mistake(f"{key} does not exist, so it cannot be changed", (key,), (fix,))
    return unknown(key, verb, line.partition("=")[2])


def _wrong_choice(group: str, value: Any, names: list[str], verb: str, others: Set[str]) -> Mistake:
    """Return the mistake of an unknown group=value. others: as in refused."""
    name, fix, hint = str(value), None, ""
    package = name.partition("_")[0]  # of a launcher of Hydra's, such as submitit_slurm
    if package.isidentifier() and extra_with(package) and (missing := missing_package(f"{group}={name}", package)):
        return missing[0]
    if instead := INSTEAD.get(f"{group}={name}"):
        hint = instead
    elif group == "hydra/sweeper":
        hint = SEARCH_INSTEAD
    elif group == "model" and name.lower() in CLASSIFIERS:
        fix = Fix((f"model.name={name.lower()}",), ("model",), said=f"set model.name={name.lower()}", is_meant=True)
    elif group == "model" and is_of_timm(name):
        fix = Fix(("model.library=timm", f"model.name={name}"), ("model",))
    elif group == "model" and (Path(name).is_file() or CheckpointStore.of_run(Path(name)).files()):
        weights = "checkpoint" if "checkpoint" in declared(verb) else "model.weights"
        fix = Fix((f"{weights}={name}",), ("model",), is_meant=True)
    elif group == "model" and (Path(name).suffix in (*FILES, ".pkl", ".onnx") or name.startswith("yolo")):
        said = "leave model out, or name a net of torchvision or timm, as in model.name=resnet18"
        fix = Fix(without=("model",), said=said, is_meant=True)
    elif group == "data" and name.partition("/")[0] in ("hfds", "hfids", "tfds", "torch", "wds"):
        hint = "save it as class folders, or pack its Parquet or tar files with prepare=import"
    elif group == "data" and (os.sep in name or Path(name).exists() or Path(name).suffix in TABLE_SUFFIXES):
        options = ways_to_read(verb, options_for(name), {each for each in others if key_of(each) != "data"})[0]
        fix = Fix(tuple(options), ("data",), said=setting(*options).words, is_meant=True)
    elif near := SHORT.get(f"{group}={name}") or choice(*names).nearest(name):
        fix = meant(f"{group}={near}")
    elif group in ("experiment", "recipe"):
        hint = f"type one of them, or leave {group} out"
    elif group == "data":
        fix = Fix(OF_FOLDER, ("data",), said=f"set {' '.join(OF_FOLDER)} for a folder of photographs")
    else:
        fix = example(f"{group}={simplest(names)}")
    what = f"{group} must be one of {', '.join(names)}, got {shown(value)}"
    return Mistake(what, (group,), (fix,) if fix else (), hint)


def in_file(error: Exception, name: str, *, is_group: bool) -> tuple[str, str]:
    """Return (reason, hint) of a mistake in a file in the user's --config-dir. The files of conf/ have none, because
    tests compose them."""
    text = next(filter(None, map(str, causes(error))), type(error).__name__)
    first = "" if is_group else ", whose first line must be `# @package _global_`"
    return " ".join(text.split()).rstrip("."), f"correct {name}.yaml{first}"
