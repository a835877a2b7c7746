"""Open the source of images that data.name or data._target_ names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.config.instantiate import make
from imagenet_ddp.data.decode import Reading
from imagenet_ddp.data.imagenet_layout import class_labels
from imagenet_ddp.data.sources import shapes, stl10
from imagenet_ddp.data.sources.base import Source
from imagenet_ddp.data.sources.class_names import one_form
from imagenet_ddp.data.sources.folder.images import FileImages, digest
from imagenet_ddp.data.sources.folder.layout import find_layout
from imagenet_ddp.data.sources.folder.scan import class_folders, foreign_classes, has_image
from imagenet_ddp.data.sources.folder.split import split_validation
from imagenet_ddp.data.sources.folder.walk import describe_left_out, list_images
from imagenet_ddp.data.sources.packed.local import open_packed
from imagenet_ddp.data.sources.packed.streamed import open_streamed
from imagenet_ddp.data.sources.stl10_images import Stl10Images
from imagenet_ddp.data.sources.table.images import open_table
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import count_noun, shorten_list


def open_source(data: Mapping[str, Any], seed: int, environ: Mapping[str, str], *, need_train: bool = True) -> Source:
    """Open the source. data: the resolved data.* keys. need_train: whether training images are needed. Raises
    ConfigError for mistakes that can be found only by opening the source."""
    try:
        source = _open(data, seed, environ, need_train)
    except PermissionError as error:
        raise ConfigError(f"{error.filename} must be readable, but is not. Hint: run chmod -R u+rX on it.") from error
    for name, images in (("training", source.train), ("validation", source.val)):
        if images is not None and not len(images):
            hint = "set a larger data.val_fraction"
            if data["val_fraction"] is None:
                hint = "set data.root=FOLDER to a folder with images"
            raise ConfigError(f"the data must have {name} images, but has none. Hint: {hint}.")
    if source.train is not None and source.val is not None:
        source.notes += absent_classes(source.classes, source.train.targets, source.val.targets)
    return source


def absent_classes(classes: list[str], train: np.ndarray, val: np.ndarray) -> list[str]:
    """Return a sentence about the classes without validation images, or []. train, val: the targets of each split."""
    absent = [classes[target] for target in sorted(set(train.tolist()) - set(val.tolist()))]
    words = f"There are no validation images of {count_noun(len(absent), 'class')}: {shorten_list(absent)}."
    return [words] if absent else []


def _open(data: Mapping[str, Any], seed: int, environ: Mapping[str, str], need_train: bool) -> Source:
    name, verb = data["name"], "train" if need_train else "evaluate"
    if data["_target_"]:
        root = {"root": data["root"]} if data["root"] else {}
        source = make("data._target_", data["_target_"], {**data["args"], **root})
        if not isinstance(source, Source):
            raise ConfigError(
                f"data._target_={data['_target_']} must return a Source, but returned a {type(source).__name__}. "
                "Hint: return an imagenet_ddp.data.Source."
            )
        return source
    if name == "stl10":
        folder = stl10.prepare(Path(data["root"] or "data"), data["download"])
        train = Stl10Images(folder, "train", data["fold"]) if need_train else None
        val = Stl10Images(folder, "test", None)
        return Source(stl10.class_names(folder), train, val, notes=stl10.notes(folder))
    if name == "table":
        return open_table(data, seed, environ, verb)
    if name == "shapes":
        return _folders(shapes.ensure(seed, environ), data, seed, need_train)
    if name == "packed":
        return open_packed(data, verb)
    if name == "streamed":
        return open_streamed(data, environ, verb)
    source = _folders(Path(data["root"]), data, seed, need_train)
    if name == "imagenet":
        known = class_labels()
        source.labels = [known.get(wordnet_id, wordnet_id) for wordnet_id in source.classes]
    return source


def _notes(*splits: FileImages | None) -> list[str]:
    """Return a sentence for the log about the files that were left out of each split."""
    found = [images for images in splits if images is not None and images.left_out]
    return [f"In {images.location}, {describe_left_out(images.left_out)}." for images in found]


def _folders(root: Path, data: Mapping[str, Any], seed: int, need_train: bool) -> Source:
    layout = find_layout({**data, "root": str(root)}, need_train=need_train)
    reading = Reading(data["decoder"], data["exif_orientation"])
    notes = [layout.note] if layout.note else []
    if data["val_fraction"] is not None:
        classes = _classes(layout.train)
        whole = list_images(layout.train, classes, reading)
        train, val, digits = split_validation(whole, data["val_fraction"], seed, data["val_fold"])
        return Source(classes, train, val, notes=[*notes, *_notes(whole)], digest=digits)
    classes = _classes(layout.train if need_train else layout.val)
    if need_train:  # a class of the training images may have disappeared since the checks
        in_val = [name for name in class_folders(layout.val) if has_image(layout.val / name)]
        if mistakes := foreign_classes(classes, in_val):
            raise ConfigError(mistakes)
    train = list_images(layout.train, classes, reading) if need_train else None
    val = list_images(layout.val, classes, reading)
    return Source(classes, train, val, notes=[*notes, *_notes(train, val)], digest=digest(train, val))


def _classes(folder: Path) -> list[str]:
    return sorted(set(map(one_form, class_folders(folder))))


def check_classes(source: Source, classes: list[str], origin: str) -> np.ndarray:
    """Return the positions of the source's classes among the classes of a checkpoint. origin: name of the checkpoint in
    messages. Raises ConfigError for classes that the checkpoint does not have."""
    known = {one_form(name): position for position, name in enumerate(classes)}
    if set(classes) == class_labels().keys():  # ImageNetV2's folders are 0 to 999, in the order of the WordNet ids
        known |= {str(number): known[wordnet_id] for number, wordnet_id in enumerate(class_labels())}
    unknown = [name for name in source.classes if one_form(name) not in known]
    if unknown:
        raise ConfigError(
            f"the data's classes must be among the {len(classes)} classes of {origin}, but {len(unknown)} are not: "
            f"{shorten_list(unknown)}. Hint: set data.root=FOLDER to data that has only classes of {origin}."
        )
    return np.array([known[one_form(name)] for name in source.classes], dtype=np.int64)
