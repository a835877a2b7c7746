"""Mistakes in the data keys and in the folders they name, before torch is imported. Cheap on a thousand classes."""

import importlib.util
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from imagenet_ddp.config.keys import validate_group
from imagenet_ddp.config.validators import choice, expect, integer
from imagenet_ddp.data.sources.detect import NAMES, name_of
from imagenet_ddp.data.sources.folder.disk_threads import side_by_side
from imagenet_ddp.data.sources.folder.scan import Within, class_folders, has_image, is_image
from imagenet_ddp.data.sources.packed import manifest
from imagenet_ddp.system.paths import shown_path
from imagenet_ddp.system.text import install, shorten_list

OF_FOLDERS = ("imagefolder", "imagenet")

_TRAINING = ("train", "tune", "doctor")  # verbs that train, on this machine


def validate(
    config: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    verb: str = "train",
    partial: bool = False,
    elsewhere: bool = False,
) -> list[str]:
    """Sentences, none where all is well.

    verb: evaluate needs only the validation images, predict no folder at all.
    partial: a checkpoint fills in the rest, so look at each key alone, not at the folders or at keys together.
    elsewhere: the folders are another machine's, so look only at how they are named.
    """
    data = config["data"]
    found = validate_group("data", data)
    if "loader" in config:  # inspect.py asks about the data alone
        found += _loader(config, verb)
    if not data["_target_"] and data["name"] not in NAMES:
        name = name_of(str(data["name"])) or next(iter(get_close_matches(str(data["name"]), NAMES, 1)), "imagefolder")
        more = " data.root=FOLDER" if name in OF_FOLDERS and not data["root"] else ""
        found += expect("data.name", data["name"], choice(*NAMES), f"data={name}{more}")
        return found
    if partial:
        return found
    if data["val_resize"] is not None and not integer(least=_at_least(data["image_size"])).accepts(data["val_resize"]):
        found.append(
            f"data.val_resize must be null or at least data.image_size ({data['image_size']}), because "
            f"the crop is cut out of it, but is {data['val_resize']}. Hint: set data.val_resize=null."
        )
    if integer(8).accepts(data["progressive_start"]):
        found += _progressive(data)
    if data["_target_"] or verb == "predict":
        return found
    if data["fold"] is not None and data["name"] != "stl10":
        found.append(
            f"data.fold is for stl10's official folds, but data.name is {data['name']}. "
            "Hint: set data.fold=null, or data=stl10."
        )
    is_named = data["name"] == "stl10" or bool(data["root"])
    if elsewhere and is_named and not str(data["root"]).startswith("~"):
        pass  # the job looks for it
    elif data["name"] in OF_FOLDERS:
        found += _folders(data, environ, verb)
    elif data["name"] == "stl10":
        from imagenet_ddp.data.sources import stl10  # here, because it imports numpy: 0.1 s that only this source costs

        fold = data["fold"] if integer(0, 9).accepts(data["fold"]) else None
        found += stl10.mistakes(Path(data["root"] or "data"), fold, data["download"])
    elif data["name"] == "shapes" and data["root"]:
        from imagenet_ddp.data.sources import shapes  # numpy and Pillow

        found += shapes.mistakes(data["root"], config.get("seed"))
    elif data["name"] == "packed":
        found += manifest.mistakes(data, verb)
    elif data["name"] == "streamed":
        from imagenet_ddp.data.sources.packed import object_store  # here, because it imports fsspec

        found += object_store.mistakes(data["root"])
    if data["name"] not in OF_FOLDERS and data["val_fraction"] is not None:
        found.append(
            f"data.val_fraction is for folders of images without val/, but {data['name']} has validation "
            "images of its own. Hint: set data.val_fraction=null."
        )
    return found


def _loader(config: Mapping[str, Any], verb: str) -> list[str]:
    loader = config["loader"]
    found = validate_group("loader", loader)
    if loader["name"] != "dali" or verb not in _TRAINING:
        return found
    if not _has_dali():
        found.append(
            "loader=dali must find NVIDIA DALI, but it is not installed. "
            f"Hint: {install('imagenet_ddp[dali]')}, or loader=default."
        )
    if loader["device"] == "gpu" and config["trainer"]["accelerator"] == "cpu":
        found.append(
            "loader.device=gpu is expected with training on a CUDA device, but trainer.accelerator is cpu. "
            "Hint: loader.device=auto."
        )
    return found


def _has_dali() -> bool:
    try:
        return importlib.util.find_spec("nvidia.dali") is not None  # finds the file, and imports none of it
    except ModuleNotFoundError:  # nothing of NVIDIA's is there
        return False


def _progressive(data: Mapping[str, Any]) -> list[str]:
    if data["progressive_epochs"] is None:
        return [
            "data.progressive_epochs is expected with data.progressive_start, but is not set. "
            "Hint: data.progressive_epochs=[10,14]."
        ]
    if data["progressive_start"] > data["image_size"]:
        return [
            f"data.progressive_start must be at most data.image_size ({data['image_size']}), but is "
            f"{data['progressive_start']}. Hint: set data.progressive_start=null."
        ]
    return []


def _at_least(size: Any) -> int:
    return size if integer(1).accepts(size) else 1


def validate_root(data: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """Of folders of images: whether there is a data.root to look into."""
    layout = "FOLDER/train/<class>/*.jpg and FOLDER/val/<class>/*.jpg"
    if not data["root"]:
        return [f"data.root must be the folder of the images, but is not set. Hint: data.root=FOLDER, with {layout}."]
    root = Path(data["root"])
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        hint = f"data.root=FOLDER, with {layout}"
        if data["root"].startswith("~"):  # no shell expands it behind "data.root="
            hint = f"data.root={environ.get('HOME', '/home/me')}{data['root'][1:]}"
        return [f"data.root must be a folder, but {shown_path(root)} {what}. Hint: {hint}."]
    return []


def _folders(data: Mapping[str, Any], environ: Mapping[str, str], verb: str) -> list[str]:
    if found := validate_root(data, environ):
        return found
    root = Path(data["root"])
    if (root / manifest.FILE).is_file():
        return [
            f"data={data['name']} expects folders of image files, but {shown_path(root)} is a packed folder "
            f"({manifest.FILE} in it). Hint: data=packed data.root={data['root']}."
        ]
    train_dir, val_dir = root / data["train_dir"], root / data["val_dir"]
    split_off = data["val_fraction"] is not None
    if split_off and val_dir.is_dir():
        found.append(
            f"data.val_fraction is {data['val_fraction']}, but there are validation images too: {shown_path(val_dir)}. "
            "Hint: set data.val_fraction=null, or name the other folder to use by data.val_dir."
        )
    train = val = None
    if verb == "train" or split_off:
        train, more = _classes(train_dir, "data.train_dir", data["name"])
        found += more
    if not split_off:
        val, more = _classes(val_dir, "data.val_dir", data["name"])
        found += more
    if train and val:
        found += _differences(train, val)
    return found


def _classes(folder: Path, key: str, name: str) -> tuple[list[str], list[str]]:
    """(class names, sentences)."""
    try:
        return _read_classes(folder, key, name)
    except PermissionError as error:
        return [], [f"{error.filename} must be readable, but is not. Hint: chmod -R u+rX on that folder."]


def _read_classes(folder: Path, key: str, name: str) -> tuple[list[str], list[str]]:
    split = "train" if key == "data.train_dir" else "val"
    if not folder.is_dir():
        hints = ["data.val_fraction=0.1 keeps a tenth of the training images for validation"] if split == "val" else []
        parent = folder.parent
        siblings = (
            [entry for entry in class_folders(parent) if entry not in ("train", "val")] if parent.is_dir() else []
        )
        if split == "train" and siblings and not (parent / "val").is_dir():
            hints.append("data.train_dir=. data.val_fraction=0.1 if these are the classes")
        there = f", which holds {shorten_list(siblings)}" if siblings else ""
        hints.append(f"{key}=NAME names another folder")
        return [], [
            f"{key} must be a folder, but {shown_path(folder)} does not exist{there}. Hint: {'; '.join(hints)}."
        ]
    classes = class_folders(folder)
    if not classes:
        with os.scandir(folder) as entries:
            is_flat = any(is_image(entry.name) for entry in entries)
        what = "has images but no class folders" if is_flat else "has no class folders"
        more = ""
        if is_flat and split == "val":
            more = " (ImageNet's val archive comes flat)" if name == "imagenet" else ""
            more += ", or data.val_fraction=0.1 with data.val_dir=none"
        return [], [
            f"{shown_path(folder)} must have a folder per class, but {what}. "
            f"Hint: sort the images into {folder}/<class>/{more}."
        ]
    found = []
    if name == "imagenet" and (foreign := [entry for entry in classes if not re.fullmatch(r"n\d{8}", entry)]):
        found.append(
            f"data=imagenet expects class folders named by WordNet id (n01440764), but {len(foreign)} of "
            f"{len(classes)} in {shown_path(folder)} are not: {shorten_list(foreign)}. Hint: data=imagefolder takes "
            "any names."
        )
    within = Within(folder, classes)
    held = side_by_side(lambda entry: has_image(folder / entry, within), classes)
    if empty := [entry for entry, has in zip(classes, held, strict=True) if not has]:
        found.append(
            f"every class folder in {shown_path(folder)} must hold images, but {len(empty)} of "
            f"{len(classes)} {'holds' if len(empty) == 1 else 'hold'} none: {shorten_list(empty)}. "
            "Hint: add images, or remove the folder."
        )
    return classes, found


def _differences(train: list[str], val: list[str]) -> list[str]:
    only_train, only_val = sorted(set(train) - set(val)), sorted(set(val) - set(train))
    if not only_train and not only_val:
        return []
    parts = [f"{len(only_train)} only in train: {shorten_list(only_train)}"] if only_train else []
    parts += [f"{len(only_val)} only in val: {shorten_list(only_val)}"] if only_val else []
    return [
        f"train and val must have the same classes, but train has {len(train)} and val {len(val)}, "
        f"{'; '.join(parts)}. Hint: rename or remove those folders."
    ]
