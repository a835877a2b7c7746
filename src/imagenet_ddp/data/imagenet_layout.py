"""Compare a folder with ILSVRC-2012, and suggest commands for the states in which its downloads are found. No torch."""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from imagenet_ddp.system.text import count_noun, shorten_list

# ILSVRC-2012: images in all, fewest and most of a class. Source: Russakovsky et al. 2015, arXiv:1409.0575, table 2.
NUM_IMAGES = {"train": (1_281_167, 732, 1_300), "val": (50_000, 50, 50)}
NUM_CLASSES = 1_000


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


def improve_hint(message: str, data: Mapping[str, Any]) -> str:
    """Replace the hint of a message on data.root where the folder is an ImageNet download in a usual state."""
    root = Path(data["root"])
    train, val = root / data["train_dir"], root / data["val_dir"]
    found = message.partition(" Hint: ")[0]
    unpacked = root / "Data" / "CLS-LOC"
    if "does not exist" in found and unpacked.is_dir():
        return f"{found} Hint: this is Kaggle's archive: data.root={unpacked}."
    if f"{val} " in found and "images but no class folders" in found:
        return f"{found} Hint: {hint_to_sort(root, val)}."
    if f"{train} " in found and "no class folders" in found and any(train.glob("n*.tar")):
        line = f'cd {train} && for f in n*.tar; do mkdir -p "${{f%.tar}}" && tar xf "$f" -C "${{f%.tar}}"; done'
        return f"{found} Hint: the archives of the classes are still packed: `{line}`."
    return message


def hint_to_sort(root: Path, val: Path) -> str:
    """Return how to sort validation images that lie flat: their classes stand in another file."""
    names = "LOC_val_solution.csv"
    for folder in (root, *root.absolute().parents[:3]):
        if (folder / names).is_file():  # Kaggle's: one line per image, "ILSVRC2012_val_00000001,n01751748 110 24 ..."
            line = (
                f"cd {val} && tail -n +2 {(folder / names).absolute()} | tr ',' ' ' | while read -r i c rest; "
                'do mkdir -p "$c" && mv "$i.JPEG" "$c/"; done'
            )
            return f"{names} has the class of each: `{line}`"
    images, devkit = "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
    folders = (root, *root.absolute().parents[:2])
    archives = next((each for each in folders if (each / images).is_file() and (each / devkit).is_file()), None)
    line = (
        f"mv {val} {val}.flat && python -m imagenet_ddp.prepare prepare=imagenet archive_dir={archives or 'ARCHIVES'} "
        f"out={root}"
    )
    where = f"from the archives in {archives}" if archives else f"with {images} and {devkit} in a folder ARCHIVES"
    return f"sort the images into {val}/<class>/; {where}, this does it: `{line}`"
