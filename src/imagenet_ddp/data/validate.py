"""Find mistakes in the options of data, and in the folders they name, before torch is imported."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from imagenet_ddp.config.keys import validate_group
from imagenet_ddp.config.schema.commands import USE_MODEL
from imagenet_ddp.config.validators import choice, expect, integer, number
from imagenet_ddp.data.imagenet_layout import read_reassessed
from imagenet_ddp.data.sources.detect import NAMES, name_of
from imagenet_ddp.data.sources.folder.scan import validate_images
from imagenet_ddp.data.sources.packed import manifest
from imagenet_ddp.data.sources.table import table
from imagenet_ddp.data.statistics import validate_statistics
from imagenet_ddp.data.validate_augment import validate_augment
from imagenet_ddp.data.validate_folders import validate_folders
from imagenet_ddp.errors import ConfigError

OF_FOLDERS = ("imagefolder", "imagenet")

_TRAINING = ("train", "tune", "doctor")  # commands that train on this machine


def validate(
    config: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    verb: str = "train",
    partial: bool = False,
    elsewhere: bool = False,
) -> list[str]:
    """Return a message for each mistake.

    verb: the command. evaluate needs only the validation images, predict and export need no folder at all, and check
    reads every image later. partial: check each key by itself, but no folders or combinations, because a checkpoint
    provides the other keys. elsewhere: check only the names of folders, because the folders are on another machine.
    """
    data = config["data"]
    found = validate_group("data", data) + validate_statistics(data["mean"], data["std"])
    if not data["_target_"] and data["name"] not in NAMES:
        name = name_of(str(data["name"])) or next(iter(get_close_matches(str(data["name"]), NAMES, 1)), "imagefolder")
        more = " data.root=FOLDER" if name in OF_FOLDERS and not data["root"] else ""
        more = " data.root=FILE.csv" if name == "table" and not data["root"] else more
        found += expect("data.name", data["name"], choice(*NAMES), f"data={name}{more}")
        return found
    if config.get("images") is not None:
        found += validate_images(config["images"])
    if config.get("real_labels") and not elsewhere:
        try:
            read_reassessed(Path(config["real_labels"]))
        except ConfigError as error:
            found += error.mistakes
    if partial:
        return found
    size = data["image_size"] if integer(1).accepts(data["image_size"]) else 1
    if data["val_resize"] is not None and not integer(size).accepts(data["val_resize"]):
        found.append(
            f"data.val_resize must be null or at least data.image_size ({data['image_size']}), because "
            f"the crop is cut out of it, got {data['val_resize']}. Hint: set data.val_resize=null."
        )
    if integer(8).accepts(data["progressive_start"]):
        found += _progressive(data)
    found += validate_augment(data) + _sampling(data) + _fold(data)
    if data["_target_"] or verb in USE_MODEL:
        return found
    is_named = data["name"] == "stl10" or bool(data["root"])
    if elsewhere and is_named and not str(data["root"]).startswith("~"):
        pass  # the job on the other machine checks it
    elif data["name"] in OF_FOLDERS:
        found += validate_folders(data, environ, verb)
    elif data["name"] == "table":
        found += table.validate(data, environ, verb)
    elif data["name"] == "stl10":
        from imagenet_ddp.data.sources import stl10  # here, because it imports numpy, which takes 0.1 s

        fold = data["fold"] if integer(0, 9).accepts(data["fold"]) else None
        found += stl10.validate(Path(data["root"] or "data"), fold, data["download"])
    elif data["name"] == "shapes" and data["root"]:
        found.append(
            f"data.root must be null for data=shapes, which generates its images in the cache folder, got "
            f"{data['root']}. Hint: set data.root=null."
        )
    elif data["name"] == "packed":
        found += manifest.validate(data, verb)
    elif data["name"] == "streamed":
        from imagenet_ddp.data.sources.packed import object_store  # here, because it imports fsspec

        found += object_store.validate(data["root"])
    return found


def _sampling(data: Mapping[str, Any]) -> list[str]:
    if data["sampling"] != "balanced":
        return []
    return [
        f"data.{key} must be {off} with data.sampling=balanced, which has its own order of images, got {data[key]}. "
        f"Hint: set data.{key}={off}, or set data.sampling=shuffled."
        for key, off in (("repeats", 1), ("shuffle_window_shards", 0))
        if integer(off + 1).accepts(data[key])
    ]


def _fold(data: Mapping[str, Any]) -> list[str]:
    fraction, fold = data["val_fraction"], data["val_fold"]
    if not integer(1).accepts(fold) or not number(above=0, below=1).accepts(fraction):
        return []  # a value of another type is already reported
    return expect("data.val_fold", fold, integer(0, max(round(1 / fraction), 1) - 1), "data.val_fold=0")


def _progressive(data: Mapping[str, Any]) -> list[str]:
    if data["progressive_epochs"] is None:
        return [
            "data.progressive_epochs must be set if data.progressive_start is set, got null. "
            "Hint: set data.progressive_epochs=[10,14]."
        ]
    key = "train_size" if data["train_size"] else "image_size"
    if data["progressive_start"] > data[key]:
        return [
            f"data.progressive_start must be at most data.{key} ({data[key]}), got "
            f"{data['progressive_start']}. Hint: set data.progressive_start={max(data[key] // 2, 1)}."
        ]
    return []
