"""Work with options as typed: merge them into a checkpoint's config, print them. Does not import torch."""

import copy
import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp.config.stored import literal
from imagenet_ddp.mistakes import key_of
from imagenet_ddp.system.text import as_typed, without_secrets


def quoted(option: str) -> str:
    """Return key=value with the quotes that Hydra's grammar requires around the value."""
    key, _, value = option.partition("=")
    is_plain = re.fullmatch(r"([\w./:%+@-]+( [\w./:%+@-]+)*)?", value, re.ASCII)
    return option if is_plain else f"{key}={QuotedString(value, Quote.double).with_quotes()}"


def _quoted(text: str) -> str:
    return QuotedString(text, Quote.single).with_quotes()


def merge_overrides(
    stored: Mapping[str, Any], composed: DictConfig, typed: Sequence[str], afresh: Sequence[str] = ()
) -> DictConfig:
    """Return a checkpoint's config overridden by the typed options. No argument is changed.

    stored: the checkpoint's config, plain and resolved; `${...}` in it is text. Keys that composed lacks belong to
    another version of this package and are ignored. typed: the options. The key of each is copied from composed; a
    choice in a group (data=stl10) copies the whole group, and experiment= or recipe= copies everything but the name.
    afresh: further key paths to copy from composed. A batch size found by trainer.batch_finder is kept unless another
    one is typed, because no option reproduces it.
    """
    merged = copy.deepcopy(composed)
    with open_dict(merged):
        lay_over(merged, stored)
        for key in map(key_of, typed):
            group, _, package = key.partition("@")
            group = group.split("/")[0]
            if group.partition(".")[0] == "hydra":
                continue
            if group in ("experiment", "recipe"):
                name = merged.name if "name" in stored else None
                merged = copy.deepcopy(composed)
                OmegaConf.set_struct(merged, False)
                if name is not None:
                    merged.name = name
                continue
            _take(merged, composed, package.rpartition(":")[2] or group)
        # The name again, because an experiment= typed after name= has restored the stored name.
        for path in [*afresh, *(["name"] if "name" in map(key_of, typed) else [])]:
            _take(merged, composed, path)
        was_found = OmegaConf.select(merged, "trainer.batch_finder") and stored.get("trainer", {}).get("batch_finder")
        if was_found and "data.batch_size" not in map(key_of, typed):
            lay_over(merged, {"data": {"batch_size": stored["data"]["batch_size"]}})
    OmegaConf.set_struct(merged, True)
    return merged


def follow_image_size(data: DictConfig, typed: Sequence[str], size: int, resize: int | None) -> None:
    """If data.image_size is typed without data.val_resize, keep the share of the image in the crop, in place: the
    stored val_resize belongs to the stored size. size, resize: the stored values."""
    keys = {*map(key_of, typed)} & {"data.image_size", "data.val_resize"}
    if (
        keys == {"data.image_size"}
        and resize is not None
        and isinstance(data.image_size, int)
        and data.val_resize == resize
    ):
        data.val_resize = round(resize * data.image_size / size)


def lay_over(node: DictConfig, stored: Mapping[str, Any]) -> None:
    """Copy into the node the stored values of the keys that it has, in which `${...}` is text. Skip a value that does
    not fit the key's type."""
    keys = {*node.keys()}  # also those without a value
    for key, value in stored.items():
        if key not in keys:
            continue
        typed_node = isinstance(value, Mapping) and dataclasses.is_dataclass(OmegaConf.get_type(node, key))
        try:
            if typed_node:
                lay_over(node[key], value)
            else:
                node[key] = literal(value, "{")  # a key of numbers would accept `${`, until it is read
                node[key] = literal(value)
        except OmegaConfBaseException:
            continue


def _take(merged: DictConfig, composed: DictConfig, path: str) -> None:
    """Copy one key path from composed to merged, or delete it from merged if composed lacks it."""
    parent, _, last = path.rpartition(".")
    source = OmegaConf.select(composed, parent) if parent else composed
    if not isinstance(source, DictConfig) or last not in source._content:  # type: ignore[operator]
        target = OmegaConf.select(merged, parent) if parent else merged
        if isinstance(target, DictConfig) and last in target:
            target.pop(last)
        return
    # Copy the node itself: a typed node does not accept the plain value of to_container(), and source[last] would
    # resolve interpolations.
    value = copy.deepcopy(source._get_node(last))
    OmegaConf.update(merged, path, value, merge=False, force_add=True)


def shell_line(verb: str, argv: list[str], program: str = "") -> str:
    """Return the command as typed, but without secrets, ready to paste into a shell. program: what runs the command,
    in place of Python."""
    program = program or f"python -m imagenet_ddp.{verb}"
    return as_typed(f"{program} {shlex.join(map(without_secrets, argv))}".strip())


def in_folder(argv: list[str], key: str, path: Path) -> list[str]:
    """Return argv with the folder as value of key, hydra.run.dir or hydra.sweep.dir. It is quoted, because Hydra allows
    few characters in unquoted values."""
    rest = [option for option in argv if key_of(option) != key]
    # placed next to the other options, because Hydra's parser accepts key=value on one side of -m only
    where = next((n for n, option in enumerate(rest) if "=" in option and not option.startswith("-")), len(rest))
    return [*rest[:where], f"{key}={_quoted(str(path))}", *rest[where:]]
