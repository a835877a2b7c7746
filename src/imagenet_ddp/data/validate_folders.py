"""Find mistakes in a folder of class folders by reading only names, before torch is imported. This takes little time
even for a thousand classes."""

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagenet_ddp.data.sources.detect import options_for
from imagenet_ddp.data.sources.folder.disk_threads import map_concurrently
from imagenet_ddp.data.sources.folder.scan import class_differences, class_folders, has_image, is_image
from imagenet_ddp.data.sources.table import table
from imagenet_ddp.system.paths import describe_path
from imagenet_ddp.system.text import count_noun, shorten_list


def validate_root(data: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """Return a message if data.root is not set or is not a folder, else an empty list."""
    layout = "FOLDER/train/<class>/*.jpg and FOLDER/val/<class>/*.jpg"
    if not data["root"]:
        return [f"data.root must be the folder of the images, got null. Hint: set data.root=FOLDER, with {layout}."]
    root = Path(data["root"])
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        hint = f"data.root=FOLDER, with {layout}"
        if root.suffix.lower() in table.SUFFIXES:
            hint = shlex.join(options_for(data["root"]))
        if data["root"].startswith("~"):  # no shell expands ~ after "data.root="
            hint = f"data.root={environ.get('HOME', '/home/me')}{data['root'][1:]}"
        return [f"data.root must be a folder, but {describe_path(root)} {what}. Hint: set {hint}."]
    return []


def validate_folders(data: Mapping[str, Any], environ: Mapping[str, str], verb: str) -> list[str]:
    if found := validate_root(data, environ):
        return found
    root = Path(data["root"])
    train_dir, val_dir = root / data["train_dir"], root / data["val_dir"]
    split_off = data["val_fraction"] is not None
    if split_off and val_dir.is_dir():
        found.append(
            f"data.val_fraction must be null if there is a folder of validation images ({describe_path(val_dir)}), got "
            f"{data['val_fraction']}. Hint: set data.val_fraction=null to use that folder."
        )
    if verb == "train" and (mistake := _classes_in_root(root, train_dir, val_dir, data)):
        return [*found, mistake]
    train = val = None
    if verb == "train" or split_off:
        train, more = _classes(train_dir, "data.train_dir", data)
        found += more
    if not split_off:
        val, more = _classes(val_dir, "data.val_dir", data)
        found += more
    if train and val:
        found += class_differences(train, val)
    return found


def _classes_in_root(root: Path, train_dir: Path, val_dir: Path, data: Mapping[str, Any]) -> str:
    """Return one message if data.root itself contains the class folders, instead of one for each folder that is
    missing; else ""."""
    if train_dir.is_dir() or val_dir.is_dir() or "data.train_dir=." not in (options := _options(data)):
        return ""
    classes, folder = class_folders(root), f"{data['train_dir']}/"
    folders = folder if data["val_fraction"] is not None else f"{folder} and {data['val_dir']}/"
    return (
        f"data.root must contain {folders}, but {describe_path(root)} has {count_noun(len(classes), 'class folder')} "
        f"({shorten_list(classes)}) and no {folder}. Hint: set `{shlex.join(options)}`."
    )


def _options(data: Mapping[str, Any]) -> list[str]:
    """Return the options that the content of data.root requires, without those that are set already."""
    said = (f"data={data['name']}", f"data.root={data['root']}")
    options = [option for option in options_for(data["root"], data["name"]) if option not in said]
    is_split = data["val_fraction"] is not None
    return [option for option in options if not (is_split and option.startswith("data.val_fraction="))]


def _classes(folder: Path, key: str, data: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return (class names, messages about mistakes)."""
    try:
        return _read_classes(folder, key, data)
    except PermissionError as error:
        return [], [f"{error.filename} must be readable, but is not. Hint: run chmod -R u+rX on that folder."]


def _read_classes(folder: Path, key: str, data: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    if not folder.is_dir():
        options = _options(data)
        hint = f"`{shlex.join(options)}`" if options else f"{key}=NAME to another folder"
        return [], [f"{key} must be a folder, but {describe_path(folder)} does not exist. Hint: set {hint}."]
    classes = class_folders(folder)
    if not classes:
        with os.scandir(folder) as entries:
            is_flat = any(is_image(entry.name) for entry in entries)
        what = "contains images and no class folders" if is_flat else "contains no class folders"
        return [], [
            f"{describe_path(folder)} must contain a folder per class, but {what}. "
            f"Hint: sort the images into {folder}/<class>/."
        ]
    found = []
    if data["name"] == "imagenet" and (foreign := [entry for entry in classes if not re.fullmatch(r"n\d{8}", entry)]):
        found.append(
            f"data=imagenet expects class folders named by WordNet id (n01440764), but {len(foreign)} of "
            f"{len(classes)} in {describe_path(folder)} {'is' if len(foreign) == 1 else 'are'} not: "
            f"{shorten_list(foreign)}. Hint: set data=imagefolder, which accepts any names."
        )
    has = map_concurrently(lambda entry: has_image(folder / entry), classes)
    if empty := [entry for entry, is_filled in zip(classes, has, strict=True) if not is_filled]:
        found.append(
            f"every class folder in {describe_path(folder)} must contain images, but {len(empty)} of "
            f"{len(classes)} {'contains' if len(empty) == 1 else 'contain'} none: {shorten_list(empty)}. "
            "Hint: add images, or remove the folder."
        )
    return classes, found
