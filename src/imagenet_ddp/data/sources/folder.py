"""Read folders of class folders (data=imagefolder). The checks read only names, which takes little time even for a
thousand classes."""

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.decode import Reading
from imagenet_ddp.data.sources.base import Source, SourceType, one_form
from imagenet_ddp.data.sources.files import (
    FileImages,
    class_folders,
    describe_left_out,
    digest,
    has_image,
    is_image,
    list_images,
    map_concurrently,
)
from imagenet_ddp.data.sources.layout import (
    Layout,
    class_folders_or_none,
    find_layout,
    inner_folder,
    is_split,
    splits_in,
)
from imagenet_ddp.data.sources.registry import TABLE_SUFFIXES, options_for
from imagenet_ddp.data.sources.split import split_validation
from imagenet_ddp.system.files import describe_path, expand_home
from imagenet_ddp.system.text import count_noun, percent, shorten_list

KAGGLE = Path("Data") / "CLS-LOC"  # the folder of train and val in Kaggle's archive of ImageNet
MIN_IMAGENET = 900  # class folders from which on WordNet IDs mean ImageNet-1k, not a subset such as Imagenette
WORDNET_ID = re.compile(r"n\d{8}")
OWN_SHARE = 0.2  # of each class, kept for validation if data.root contains the class folders


class ImageFolder(SourceType):
    def check(self, data: DataConfig, verb: str) -> list[str]:
        """For verb=check, only look for a folder, because mistakes inside it are reported with the images."""
        if found := _check_root(data):
            return found
        try:
            layout = find_layout(data)
            if verb == "check" and (layout.train.is_dir() or layout.val.is_dir()):
                return []
            return self._check(data, verb != "evaluate")
        except PermissionError as error:
            return [f"{error.filename} must be readable, but is not. Hint: run chmod -R u+rX on that folder."]

    def implied(self, data: DataConfig) -> dict[str, Any]:
        """If data.root itself contains the class folders, keep a share of each class for validation."""
        if not data.root or (data.name, data.train_dir, data.val_dir) != ("imagefolder", "train", "val"):
            return {}
        root, layout = Path(data.root), find_layout(data)
        if layout.train.is_dir() or layout.val.is_dir() or splits_in(root) or len(class_folders_or_none(root)) < 2:
            return {}
        return {"train_dir": ".", "val_fraction": data.val_fraction or OWN_SHARE}

    def recognise(self, root: str, folder: Path, otherwise: str) -> list[str]:
        if (folder / KAGGLE / "train").is_dir():
            return ["data=imagenet", f"data.root={Path(root) / KAGGLE}"]
        if not folder.is_dir():
            return []
        layout, classes = find_layout(DataConfig(root=str(folder))), class_folders(folder)
        if layout.train.is_dir():
            more = [] if layout.val.is_dir() else ["data.val_fraction=0.1"]
            return [f"data={_by_names(layout.train, otherwise)}", f"data.root={root}", *more]
        # an archive unpacked into a folder of its own
        if len(classes) == 1 and not is_split(classes[0]) and class_folders(folder / classes[0]):
            return self.recognise(str(Path(root) / classes[0]), folder / classes[0], otherwise)
        if classes and not layout.val.is_dir():  # the folder itself contains the class folders
            name = _by_names(folder, otherwise)
            options = ["data.train_dir=.", "data.val_fraction=0.1"] if name == "imagenet" else []
            return [f"data={name}", f"data.root={root}", *options]
        return []

    def open(self, data: DataConfig, seed: int, verb: str) -> Source:
        need_train = verb != "evaluate"
        layout = find_layout(data, need_train=need_train)
        reading = Reading(data.decoder, data.exif_orientation)
        notes = [layout.note] if layout.note else []
        if data.val_fraction is not None:
            classes = _classes(layout.train)
            whole = list_images(layout.train, classes, reading)
            notes.append(f"{percent(data.val_fraction, 0)} of each class of {layout.train} is kept for validation.")
            train, val, digits = split_validation(whole, data.val_fraction, seed, data.val_fold)
            return Source(classes, train, val, notes=[*notes, *_notes(whole)], digest=digits)
        classes = _classes(layout.train if need_train else layout.val)
        train = list_images(layout.train, classes, reading) if need_train else None
        val = list_images(layout.val, classes, reading)
        return Source(classes, train, val, notes=[*notes, *_notes(train, val)], digest=digest(train, val))

    def audit(self, source: Source) -> list[str]:
        """Report the images next to the class folders, which are never read."""
        more = f" {self.see}" if self.see else ""
        return [
            f"every image must be in a class folder, but {count_noun(number, 'image')} directly in {images.folder} "
            f"would not be read. Hint: move each image into the folder of its class, or out of {images.folder}.{more}"
            for images in (source.train, source.val)
            if isinstance(images, FileImages) and (number := images.left_out["beside"])
        ]

    def foreign_names(self, classes: Sequence[str], where: str) -> list[str]:
        """Return a message about names of class folders that this data set cannot have."""
        return []

    def _check(self, data: DataConfig, need_train: bool) -> list[str]:
        is_share = data.val_fraction is not None
        layout, found = find_layout(data, need_train=need_train), []
        if is_share and layout.val.is_dir():
            found.append(
                f"data.val_fraction must be null if there is a folder of validation images "
                f"({describe_path(layout.val)}), got {data.val_fraction}. Hint: set data.val_fraction=null to use "
                "that folder."
            )
        train = val = None
        if need_train or is_share:
            train, more = self._read_classes(layout.train, "data.train_dir", data, need_train)
            found += more
        if not is_share and (layout.val.is_dir() or not found):
            val, more = self._read_classes(layout.val, "data.val_dir", data, need_train, train or ())
            found += more
        if train and val:
            found += _overlap(layout, data) or _foreign_classes(train, val)
        return found

    def _read_classes(
        self, folder: Path, key: str, data: DataConfig, need_train: bool, known: Sequence[str] = ()
    ) -> tuple[list[str], list[str]]:
        """Return (class names, messages about mistakes). known: the classes of the training images."""
        is_train, where = key == "data.train_dir", describe_path(folder)
        if not folder.is_dir():
            root, is_share = str(data.root), data.val_fraction is not None
            options = _without_typed(options_for(root, data.name), data)
            hint = shlex.join(each for each in options if not (is_share and each.startswith("data.val_fraction=")))
            if not is_train and not need_train and (name := next(iter(splits_in(Path(root))), None)):
                is_around = len(splits_in(Path(root, name))) > 1
                hint = shlex.join([f"data.root={Path(root, name)}" if is_around else f"data.val_dir={name}"])
            hint = f"`{hint}`" if hint else f"{key}=NAME to another folder"
            return [], [f"{key} must be a folder, but {where} does not exist. Hint: set {hint}."]
        classes = class_folders(folder)
        if mistake := _no_classes(folder, key, classes, data, need_train, known):
            return [], [mistake]
        found = self.foreign_names(classes, where)
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


def _check_root(data: DataConfig) -> list[str]:
    """Return a message if data.root is not set or is not a folder, else an empty list."""
    hint = "data.root=FOLDER, with FOLDER/train/<class>/*.jpg and FOLDER/val/<class>/*.jpg"
    if not data.root:
        if Path(data.train_dir).is_dir() or Path(data.val_dir).is_dir():
            hint = "`data.root=.`; data.train_dir and data.val_dir are relative to it"
        return [f"data.root must be the folder of the images, got null. Hint: set {hint}."]
    root = Path(data.root)
    if root.is_dir():
        return []
    if root.suffix.lower() in TABLE_SUFFIXES:
        hint = shlex.join(["data=table", f"data.root={data.root}"])
    if data.root.startswith("~"):  # no shell expands ~ after "data.root="
        hint = f"data.root={expand_home(data.root)}"
    what = "is a file" if root.exists() else "does not exist"
    return [f"data.root must be a folder, but {describe_path(root)} {what}. Hint: set {hint}."]


def _no_classes(
    folder: Path, key: str, classes: Sequence[str], data: DataConfig, need_train: bool, known: Sequence[str]
) -> str:
    """Return a message if the sub-folders are not the classes: there are none, they are splits, or the classes are one
    level below; else ""."""
    is_train, where, root = key == "data.train_dir", describe_path(folder), Path(str(data.root))
    if not classes:
        with os.scandir(folder) as entries:
            is_flat = any(is_image(entry.name) for entry in entries)
        what = "contains images and no class folders" if is_flat else "contains no class folders"
        return f"{where} must contain a folder per class, but {what}. Hint: sort the images into {folder}/<class>/."
    named = [name for name in classes if is_split(name)]
    if len(named) > 1 and splits_in(folder):
        inside = find_layout(DataConfig(root=str(folder)))
        options = [*_without_typed([f"data.root={folder}"], data), f"data.train_dir={inside.train.name}"]
        options += [f"data.val_dir={inside.val.name}"] if inside.val.is_dir() else ["data.val_fraction=0.1"]
        options += ["data.val_fraction=null"] if inside.val.is_dir() and data.val_fraction is not None else []
        return (
            f"{where} must contain a folder per class, but {shorten_list(named)} are named as splits and contain "
            f"folders themselves. Hint: set `{shlex.join(options)}`."
        )
    if len(classes) > 1 or not (is_train or is_split(classes[0]) or (need_train and classes[0] not in known)):
        return ""
    inner = inner_folder(folder)
    if inner == folder:
        hint = f"add images of another class as {folder}/<class>/"
    else:
        path, has = inner.relative_to(root) if inner.is_relative_to(root) else inner, shorten_list(class_folders(inner))
        hint = f"set `{shlex.join([f'{key}={path}'])}`, whose folders are {has}, if those are the classes"
    if not is_train and inner == folder:
        return ""
    rule = "a folder for each of at least two classes" if is_train else "a folder per class"
    return f"{where} must contain {rule}, but contains only {classes[0]}. Hint: {hint}."


def _overlap(layout: Layout, data: DataConfig) -> list[str]:
    """Return a message if one of the two folders is inside the other, or is the same, or if they share a class folder,
    also through links."""
    train, val = layout.train.resolve(), layout.val.resolve()
    if not train.is_relative_to(val) and not val.is_relative_to(train):
        classes = {(layout.train / name).resolve() for name in class_folders(layout.train)}
        shared = [name for name in class_folders(layout.val) if (layout.val / name).resolve() in classes]
        return (
            [
                f"data.val_dir must contain other images than data.train_dir, but {shorten_list(shared)} in "
                f"{describe_path(layout.val)} and a class folder in {layout.train} are the same folder. Hint: replace "
                "the links by folders of other images."
            ]
            if shared
            else []
        )
    where = "the same folder as" if train == val else "inside" if val.is_relative_to(train) else "around"
    usual = find_layout(replace(data, train_dir="train", val_dir="val"))
    hint = "set `data.train_dir=train data.val_dir=val`"
    if not usual.train.is_dir():
        hint = "put the class folders of both into separate folders"
    elif not usual.val.is_dir():
        hint = "set `data.val_dir=val data.val_fraction=0.1`"
    return [
        f"data.val_dir must contain other images than data.train_dir, but {describe_path(layout.val)} is {where} "
        f"{layout.train}. Hint: {hint}; to score training images, run evaluate with data.val_dir={data.val_dir}."
    ]


def _foreign_classes(train: list[str], val: list[str]) -> list[str]:
    """Return a message about the classes that only the validation images have, or [] if there are none. A class without
    validation images is allowed."""
    train, val = (list(dict.fromkeys(map(one_form, names))) for names in (train, val))
    if not (only_val := sorted(set(val) - set(train))):
        return []
    return [
        f"each class of val must also be a class of train, but {len(only_val)} of {len(val)} "
        f"{'is' if len(only_val) == 1 else 'are'} not: {shorten_list(only_val)}. Hint: rename those folders as in "
        "train, or remove them."
    ]


def _without_typed(options: list[str], data: DataConfig) -> list[str]:
    return [option for option in options if option not in (f"data={data.name}", f"data.root={data.root}")]


def _by_names(folder: Path, otherwise: str) -> str:
    """Return imagenet for about a thousand classes named by WordNet ID, and imagefolder for classes with other names.
    A few classes with such names can be read as either, but data=imagenet selects the recipe of the whole data set."""
    classes = class_folders(folder)
    if not all(map(WORDNET_ID.fullmatch, classes)):
        return "imagefolder"
    return "imagenet" if len(classes) >= MIN_IMAGENET else otherwise


def _classes(folder: Path) -> list[str]:
    return sorted(set(map(one_form, class_folders(folder))))


def _notes(*splits: FileImages | None) -> list[str]:
    """Return a sentence for the log about the files that were left out of each split."""
    found = [images for images in splits if images is not None and images.left_out]
    return [f"In {images.location}, {describe_left_out(images.left_out)}." for images in found]
