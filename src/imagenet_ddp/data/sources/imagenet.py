"""Read ImageNet (data=imagenet), compare a folder with ILSVRC-2012, and name its classes."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np

from imagenet_ddp.config.schema.data import FolderData
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.data.sources.base import Scan, Source, one_form
from imagenet_ddp.data.sources.folder import ImageFolder
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.system.files import describe_path
from imagenet_ddp.system.text import class_list, count_noun, shorten_list

# ILSVRC-2012: number of images in total and in the smallest class. Source: Russakovsky et al. 2015, arXiv:1409.0575,
# table 2.
NUM_IMAGES = {"train": (1_281_167, 732), "val": (50_000, 50)}
NUM_CLASSES = 1_000


class ImageNet(ImageFolder):
    def scan(self, data: FolderData, seed: int, purpose: Purpose, *, whole: bool = True) -> Scan:
        found = super().scan(data, seed, purpose, whole=whole)
        return found if found.open is None else replace(found, open=partial(_open, found.open))


def _open(open_folder: Callable[[], Source]) -> Source:
    source, known = open_folder(), class_labels()
    source.labels = [known.get(wordnet_id, wordnet_id) for wordnet_id in source.classes]
    for name, images in source.splits.items():
        numbers = images.num_of_each(len(source.classes)).tolist()
        counts = {key: number for key, number in zip(source.classes, numbers, strict=True) if number}
        source.doubts += validate_counts(name, images.location, counts)
    return source


def class_table() -> list[list[str]]:
    """Return WordNet id, name as in torchvision's weights, and ILSVRC2012_ID of each of the 1,000 classes."""
    table = resources.files("imagenet_ddp.data").joinpath("imagenet_classes.tsv").read_text(encoding="utf-8")
    return [line.split("\t") for line in table.splitlines()]


def class_labels() -> dict[str, str]:
    """Return a dict of WordNet id -> class name, in the order of the class numbers."""
    return {wordnet_id: name for wordnet_id, name, _ in class_table()}


def wordnet_ids(names: Sequence[str]) -> list[str] | None:
    """Return the WordNet ids of ImageNet's classes if these are their names in the order of the class numbers, such as
    "tench, Tinca tinca"; None for other classes. The published lists differ in a few names."""
    known = class_labels()
    if len(names) != NUM_CLASSES:
        return None
    pairs = zip(names, known.items(), strict=True)
    same = sum(name == key or name.partition(",")[0].strip().lower() == label.lower() for name, (key, label) in pairs)
    return list(known) if same >= 0.9 * NUM_CLASSES else None


def validate_counts(name: str, folder: str, counts: Mapping[str, int]) -> list[str]:
    """Return a message if the classes or the numbers of images of a split differ from ILSVRC-2012, else an empty list.
    counts: class -> number of images."""
    num_images, least = NUM_IMAGES[name]
    found = sum(counts.values())
    if (len(counts), found) == (NUM_CLASSES, num_images):
        return []
    reasons = (
        ("missing", sorted(class_labels().keys() - counts.keys())),
        (f"with fewer than {least} images", [f"{key} ({number})" for key, number in counts.items() if number < least]),
    )
    parts = [f"; {count_noun(len(keys), 'class')} {what}: {shorten_list(keys)}" for what, keys in reasons if keys]
    return [
        f"data=imagenet expects {num_images:,} images of {NUM_CLASSES:,} classes in {name}, but {folder} has "
        f"{found:,} of {len(counts):,}{''.join(parts)}. "
        "Hint: unpack those classes again, or set data=imagefolder to use a part of ImageNet."
    ]


def check_classes(source: Source, classes: list[str], origin: str) -> np.ndarray:
    """Return the positions of the source's classes among the classes of a checkpoint. origin: name of the checkpoint in
    messages. Raises ConfigError for classes that the checkpoint does not have."""
    known = {one_form(name): position for position, name in enumerate(classes)}
    if set(classes) == class_labels().keys():  # ImageNetV2's folders are 0 to 999, in the order of the WordNet ids
        known |= {str(number): known[wordnet_id] for number, wordnet_id in enumerate(class_labels())}
    unknown = [name for name in source.classes if one_form(name) not in known]
    if unknown:
        what = (
            f"the data's classes must be among the {len(classes)} classes of {origin}, but "
            f"{len(unknown)} {'is' if len(unknown) == 1 else 'are'} not: {class_list(unknown)}"
        )
        way = setting("data.root=FOLDER", aim=f"to data that has only classes of {origin}")
        raise ConfigError(Mistake(what, ("data.root",), (way,)))
    return np.array([known[one_form(name)] for name in source.classes], dtype=np.int64)


def read_reassessed(file: Path) -> list[list[int]]:
    """Return the numbers of the correct classes of each image of ImageNet's validation set, in the order of the image
    numbers.

    file: real.json of Beyer et al. 2020, arXiv:2006.07159. Raises ConfigError if the file is not in this form.
    """
    labels: list[list[int]] = []
    with suppress(OSError, ValueError, TypeError):
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []  # a pipe would be waited for
        if all(0 <= number < NUM_CLASSES for image in found for number in image):
            labels = found
    if not labels:
        what = (
            f"real_labels must be a JSON file with a list of class numbers from 0 to {NUM_CLASSES - 1} for each image, "
            f"but {describe_path(file)} is not"
        )
        hint = (
            "download real.json from https://github.com/google-research/reassessed-imagenet, and set real_labels=FILE"
        )
        raise ConfigError(Mistake(what, ("real_labels",), hint=hint))
    return labels


def reassessed_labels(file: Path, paths: Iterable[str]) -> list[set[str]]:
    """Return the set of correct WordNet ids of each image. It is empty for an image that must not be counted.

    file: see read_reassessed. paths: paths of the images, with ImageNet's file names. Raises ConfigError if the file is
    not in this form, or if a path has another name.
    """
    wordnet_ids = list(class_labels())
    labels = [{wordnet_ids[position] for position in image} for image in read_reassessed(file)]
    found = []
    for path in paths:
        number = re.search(r"ILSVRC2012_val_(\d{8})\.\w+$", path)
        if number is None or not 1 <= int(number[1]) <= len(labels):
            what = f"real_labels requires images named ILSVRC2012_val_00000001.JPEG to {len(labels):08}, got {path}"
            raise ConfigError(Mistake(what, ("real_labels",), (setting("real_labels=null"),)))
        found.append(labels[int(number[1]) - 1])
    return found
