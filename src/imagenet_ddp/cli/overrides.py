"""Merge typed options into the config of a checkpoint. No torch."""

import copy
import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp.config import trainer_options


def merge_overrides(
    stored: Mapping[str, Any], composed: DictConfig, typed: Iterable[str], afresh: Iterable[str] = ()
) -> DictConfig:
    """A checkpoint's config with what was typed on top. Neither argument is changed.

    stored: plain and resolved; keys unknown to composed are ignored, as they are of another version of this package.
    typed: options; each one's key is taken from composed, a group's choice (data=stl10) with its whole subtree, and
    experiment= or recipe= take everything but the name. afresh: further key paths to take from composed.
    """
    merged = copy.deepcopy(composed)
    with open_dict(merged):
        _lay_over(merged, stored)
        for override in OverridesParser.create().parse_overrides(list(typed)):
            group = override.key_or_group.split("/")[0]
            if override.is_hydra_override() or group == "hydra":
                continue
            if group in ("experiment", "recipe"):
                name = merged.name if "name" in stored else None
                merged = copy.deepcopy(composed)
                OmegaConf.set_struct(merged, False)
                if name is not None:
                    merged.name = name
                continue
            _take(merged, composed, override.package or group)
        # once more, because experiment= takes everything: name= may have been typed before it
        for path in [*afresh, *(["name"] if any(re.match(r"\+*name=", line) for line in typed) else [])]:
            _take(merged, composed, path)
    OmegaConf.set_struct(merged, True)
    return merged


def _lay_over(node: DictConfig, stored: Mapping[str, Any]) -> None:
    """Copy into the node what it has a key for; a value that no longer fits its type is left as composed."""
    for key, value in stored.items():
        if key not in node:
            continue
        typed_node = isinstance(value, Mapping) and dataclasses.is_dataclass(OmegaConf.get_type(node, key))
        try:
            if typed_node:
                _lay_over(node[key], value)
            elif key == "trainer" and isinstance(value, Mapping):
                for name in trainer_options.ACCEPTED.keys() & value.keys():
                    node[key][name] = value[name]
            else:
                node[key] = value
        except OmegaConfBaseException:
            continue


def _take(merged: DictConfig, composed: DictConfig, path: str) -> None:
    """Copy one key path, or delete it where composed has none."""
    parent, _, last = path.rpartition(".")
    source = OmegaConf.select(composed, parent) if parent else composed
    if not isinstance(source, DictConfig) or last not in source._content:  # type: ignore[operator]
        target = OmegaConf.select(merged, parent) if parent else merged
        if isinstance(target, DictConfig) and last in target:
            target.pop(last)
        return
    # The node itself: a typed one does not take the plain value of to_container(), and source[last] would resolve it.
    value = copy.deepcopy(source._get_node(last))
    OmegaConf.update(merged, path, value, merge=False, force_add=True)
