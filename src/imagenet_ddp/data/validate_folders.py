"""Find mistakes in a folder of class folders by reading only names, before torch is imported. This takes little time
even for a thousand classes."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imagenet_ddp.data.sources.detect import options_for
from imagenet_ddp.data.sources.folder.disk_threads import map_concurrently
from imagenet_ddp.data.sources.folder.layout import Layout, find_layout, inner_folder, is_split, splits_in
from imagenet_ddp.data.sources.folder.scan import class_folders, foreign_classes, has_image, is_image
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
    try:
        return _validate(data, verb)
    except PermissionError as error:
        return [f"{error.filename} must be readable, but is not. Hint: run chmod -R u+rX on that folder."]


def _validate(data: Mapping[str, Any], verb: str) -> list[str]:
    need_train, is_share = verb != "evaluate", data["val_fraction"] is not None
    layout, found = find_layout(data, need_train=need_train), []
    if is_share and layout.val.is_dir():
        found.append(
            f"data.val_fraction must be null if there is a folder of validation images ({describe_path(layout.val)}), "
            f"got {data['val_fraction']}. Hint: set data.val_fraction=null to use that folder."
        )
    if (need_train or is_share) and (mistake := _classes_in_root(layout, data)):
        return [*found, mistake]
    train = val = None
    if need_train or is_share:
        train, more = _read_classes(layout.train, "data.train_dir", data, need_train)
        found += more
    if not is_share and (layout.val.is_dir() or not found):
        val, more = _read_classes(layout.val, "data.val_dir", data, need_train, train or ())
        found += more
    if train and val:
        found += _overlap(layout, data) or foreign_classes(train, val)
    return found


def _overlap(layout: Layout, data: Mapping[str, Any]) -> list[str]:
    """Return a message if one of the two folders is inside the other, or is the same, also through links."""
    train, val = layout.train.resolve(), layout.val.resolve()
    if not (train.is_relative_to(val) or val.is_relative_to(train)):
        return _shared_classes(layout)
    where = "the same folder as" if train == val else "inside" if val.is_relative_to(train) else "around"
    usual = find_layout({**data, "val_dir": "val"}).val
    hint = "put the class folders of both into separate folders"
    if data["val_dir"] != "val":
        hint = "set data.val_dir=val" if usual.is_dir() else "set `data.val_dir=val data.val_fraction=0.1`"
    return [
        f"data.val_dir must contain other images than data.train_dir, but {describe_path(layout.val)} is {where} "
        f"{layout.train}. Hint: {hint}; to score training images, run evaluate with data.val_dir={data['val_dir']}."
    ]


def _shared_classes(layout: Layout) -> list[str]:
    """Return a message if class folders of the validation images are links to those of the training images."""
    train = {(layout.train / name).resolve() for name in class_folders(layout.train)}
    shared = [name for name in class_folders(layout.val) if (layout.val / name).resolve() in train]
    if not shared:
        return []
    return [
        f"data.val_dir must contain other images than data.train_dir, but in {describe_path(layout.val)}, "
        f"{shorten_list(shared)} and a class folder in {layout.train} are the same folder. Hint: replace the links in "
        f"{layout.val} by folders of other images; to score training images, run evaluate."
    ]


def _classes_in_root(layout: Layout, data: Mapping[str, Any]) -> str:
    """Return one message if data.root itself contains the class folders, instead of one for each folder that is
    missing; else ""."""
    is_missing = not layout.train.is_dir() and not layout.val.is_dir()
    if not is_missing or not (options := _options(data)):
        return ""
    root, folder = Path(data["root"]), f"{data['train_dir']}/"
    classes = class_folders(root)
    folders = folder if data["val_fraction"] is not None else f"{folder} and {data['val_dir']}/"
    return (
        f"data.root must contain {folders}, but {describe_path(root)} has {count_noun(len(classes), 'class folder')} "
        f"({shorten_list(classes)}) and no {folder}. Hint: set `{shlex.join(options)}`."
    )


def _options(data: Mapping[str, Any]) -> list[str]:
    """Return the options that the content of data.root requires, without those that are set already."""
    options = _without_typed(options_for(data["root"], data["name"]), data)
    is_share = data["val_fraction"] is not None
    return [option for option in options if not (is_share and option.startswith("data.val_fraction="))]


def _without_typed(options: list[str], data: Mapping[str, Any]) -> list[str]:
    return [option for option in options if option not in (f"data={data['name']}", f"data.root={data['root']}")]


def _read_classes(
    folder: Path, key: str, data: Mapping[str, Any], need_train: bool, known: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Return (class names, messages about mistakes). known: the classes of the training images."""
    is_train, splits = key == "data.train_dir", splits_in(folder) if folder.is_dir() else []
    if not folder.is_dir():
        hint = shlex.join(_options(data))
        if not is_train and not need_train and (name := next(iter(splits_in(Path(data["root"]))), None)):
            is_around = len(splits_in(Path(data["root"]) / name)) > 1
            hint = shlex.join([f"data.root={Path(data['root']) / name}" if is_around else f"data.val_dir={name}"])
        hint = f"`{hint}`" if hint else f"{key}=NAME to another folder"
        return [], [f"{key} must be a folder, but {describe_path(folder)} does not exist. Hint: set {hint}."]
    classes = class_folders(folder)
    where = describe_path(folder)
    if not classes:
        with os.scandir(folder) as entries:
            is_flat = any(is_image(entry.name) for entry in entries)
        what = "contains images and no class folders" if is_flat else "contains no class folders"
        return [], [f"{where} must contain a folder per class, but {what}. "
                    f"Hint: sort the images into {folder}/<class>/."]  # fmt: skip
    named = [name for name in classes if is_split(name)]
    if splits and len(named) > 1:
        inside = find_layout(
            {**data, "root": str(folder), "train_dir": "train", "val_dir": "val", "val_fraction": None}
        )
        options = [*_without_typed([f"data.root={folder}"], data), f"data.train_dir={inside.train.name}"]
        options += [f"data.val_dir={inside.val.name}"] if inside.val.is_dir() else ["data.val_fraction=0.1"]
        options += ["data.val_fraction=null"] if inside.val.is_dir() and data["val_fraction"] is not None else []
        return [], [
            f"{where} must contain a folder per class, but {shorten_list(named)} are named as splits and contain "
            f"folders themselves. Hint: set `{shlex.join(options)}`."
        ]
    inner = inner_folder(folder)
    if len(classes) == 1 and (is_train or is_split(classes[0]) or (need_train and classes[0] not in known)):
        root = Path(data["root"])
        path = inner.relative_to(root) if inner.is_relative_to(root) else inner
        hint = f"add images of another class as {folder}/<class>/"
        if inner != folder:
            has = shorten_list(class_folders(inner))
            hint = f"set `{shlex.join([f'{key}={path}'])}`, whose folders are {has}, if those are the classes"
        if is_train or inner != folder:
            rule = "a folder for each of at least two classes" if is_train else "a folder per class"
            return [], [f"{where} must contain {rule}, but contains only {classes[0]}. Hint: {hint}."]
    found = []
    if data["name"] == "imagenet" and (foreign := [entry for entry in classes if not re.fullmatch(r"n\d{8}", entry)]):
        found.append(
            f"data=imagenet expects class folders named by WordNet id (n01440764), but {len(foreign)} of "
            f"{len(classes)} in {where} {'is' if len(foreign) == 1 else 'are'} not: "
            f"{shorten_list(foreign)}. Hint: set data=imagefolder, which accepts any names."
        )
    has = map_concurrently(lambda entry: has_image(folder / entry), classes)
    filled = [entry for entry, is_filled in zip(classes, has, strict=True) if is_filled]
    if is_train and (empty := [entry for entry in classes if entry not in set(filled)]):
        found.append(
            f"every class folder in {where} must contain images, but {len(empty)} of "
            f"{len(classes)} {'contains' if len(empty) == 1 else 'contain'} none: {shorten_list(empty)}. "
            "Hint: add images, or remove the folder (and its images in val)."
        )
    elif not filled:
        found.append(f"{where} must contain images, but its class folders are empty. Hint: add images.")
    return classes if is_train else filled, found
