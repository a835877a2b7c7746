"""Check what a file of weights states about itself, before it is believed."""

from collections.abc import Mapping
from typing import Any

from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.config.stored import not_plain
from imagenet_ddp.config.validators import TEXTS, is_mapping


def wrong_facts(own: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the classes, the preprocessing and the config that a file of weights states, each as
    "labels are as many as its classes". own: this project's part of a checkpoint, or the metadata of an exported file.
    """
    found = [f"{name} is {TEXTS.words}" for name in ("classes", "labels") if not TEXTS.accepts(own.get(name))]
    groups = declared("train")
    transform: Any = own.get("eval_transform")
    config: Any = own.get("config", {})
    found += [
        f"{name} is a mapping of names"
        for name, value in (("eval_transform", transform), ("config", config))
        if not (is_mapping(value) and all(isinstance(key, str) for key in value))
    ]
    if found:
        return found
    if reason := not_plain(config) or not_plain(transform):
        return [f"config and eval_transform are plain ({reason})"]
    for path, key in groups.items():
        if key.is_group and "." not in path and not is_mapping(config.get(path, {})):
            found.append(f"config.{path} is a mapping")
    needed = dict.fromkeys(("image_size", "val_resize", "interpolation", "mean", "std"))
    reading: Mapping[str, Any] = own if found else config.get("data", own)
    stated: dict[str, Any] = {**needed, **transform}
    stated |= {name: reading[name] for name in ("exif_orientation", "white_level") if name in reading}
    for name, value in stated.items():
        key = groups.get(f"data.{name}")
        is_wrong = key is not None and key.allowed is not None and not key.allowed.accepts(value)
        if is_wrong or (name in needed and value is None):
            found.append(f"eval_transform.{name} is that of data.{name}")
    if len(own["labels"]) != len(own["classes"]):
        found.append("labels are as many as its classes")
    return found
