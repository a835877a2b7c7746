"""Compare a folder with ILSVRC-2012. No torch."""

import json
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import count_noun, shorten_list

# ILSVRC-2012: images in all, fewest and most of a class. Source: Russakovsky et al. 2015, arXiv:1409.0575, table 2.
NUM_IMAGES = {"train": (1_281_167, 732, 1_300), "val": (50_000, 50, 50)}
NUM_CLASSES = 1_000
SEE = 'docs/data.md, "ImageNet in another form", has a command for each form in which it is downloaded.'


def class_table() -> list[list[str]]:
    """Return WordNet id, name as in torchvision's weights, and ILSVRC2012_ID of each of the 1,000 classes."""
    table = resources.files("imagenet_ddp.data").joinpath("imagenet_classes.tsv").read_text(encoding="utf-8")
    return [line.split("\t") for line in table.splitlines()]


def class_labels() -> dict[str, str]:
    """Return WordNet id -> name."""
    return {wordnet_id: name for wordnet_id, name, _ in class_table()}


def validate_counts(name: str, folder: Path, counts: Mapping[str, int]) -> list[str]:
    """Report what is missing from a split. counts: class -> number of images."""
    num_images, least, most = NUM_IMAGES[name]
    found = sum(counts.values())
    if (len(counts), found) == (NUM_CLASSES, num_images):
        return []
    few = [f"{key} ({number})" for key, number in counts.items() if number < least]
    many = [f"{key} ({number})" for key, number in counts.items() if number > most]
    reasons = (
        ("missing", sorted(class_labels().keys() - counts.keys())),
        (f"with fewer than {least}", few),
        (f"with more than {most}", many),
    )
    parts = [f"; {count_noun(len(keys), 'class')} {what}: {shorten_list(keys)}" for what, keys in reasons if keys]
    return [
        f"data=imagenet expects {num_images:,} images of {NUM_CLASSES:,} classes in {name}, but {folder} has "
        f"{found:,} of {len(counts):,}{''.join(parts)}. "
        "Hint: unpack those classes again; for a part of ImageNet, data=imagefolder."
    ]


def reassessed_labels(file: Path, paths: Iterable[str]) -> list[set[str]]:
    """Return the WordNet ids that are right for each image; none for an image that is not to be counted.

    file: real.json of Beyer et al. 2020, arXiv:2006.07159, a list for each validation image by its number. paths: of
    the images, with ImageNet's file names. Raises ConfigError for other names.
    """
    hint = "Hint: real_labels=real.json, of https://github.com/google-research/reassessed-imagenet."
    wordnet_ids = list(class_labels())
    try:
        labels = [{wordnet_ids[position] for position in image} for image in json.loads(file.read_text())]
    except (OSError, ValueError, TypeError, IndexError) as error:
        raise ConfigError(
            f"real_labels must be a JSON file, a list of class numbers for each image, but {file} is not: {error}. "
            f"{hint}"
        ) from error
    found = []
    for path in paths:
        number = re.search(r"ILSVRC2012_val_(\d{8})\.\w+$", path)
        if number is None or not 1 <= int(number[1]) <= len(labels):
            raise ConfigError(
                f"real_labels is for images named ILSVRC2012_val_00000001.JPEG to {len(labels):08}, got {path}. "
                "Hint: set real_labels=null."
            )
        found.append(labels[int(number[1]) - 1])
    return found
