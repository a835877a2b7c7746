"""Compare a folder with ILSVRC-2012. No torch."""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

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
