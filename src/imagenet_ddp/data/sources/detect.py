"""Guess which value of data= is right for a folder or a file, from a quick look at its content. This module does not
import torch, and does not count images (inspect.py does)."""

import re
from pathlib import Path

from imagenet_ddp.data.sources.folder.layout import find_layout, is_split
from imagenet_ddp.data.sources.folder.scan import class_folders
from imagenet_ddp.data.sources.packed import manifest
from imagenet_ddp.data.sources.table import table
from imagenet_ddp.system.paths import expand_home

KAGGLE = Path("Data") / "CLS-LOC"  # the folder of train and val in Kaggle's archive of ImageNet
NAMES = ("shapes", "imagefolder", "imagenet", "table", "stl10", "packed", "streamed")
_SAME = {"imagenet1k": "imagenet", "ilsvrc2012": "imagenet", "imagenet2012": "imagenet", "fakedata": "shapes",
         "csv": "table", "parquet": "table"}  # fmt: skip
MIN_IMAGENET = 900  # class folders from which on WordNet IDs mean ImageNet-1k, not a subset such as Imagenette
STL10 = ("stl10_binary", "stl10_binary.tar.gz")


def name_of(text: str) -> str | None:
    """Return the value of data= for another spelling of it, such as imagenet for ImageNet, imagenet1k and imagenet-1k,
    or None for an unknown name."""
    bare = re.sub(r"[^a-z0-9]", "", text.lower())
    return bare if bare in NAMES else _SAME.get(bare)


def options_for(root: str, otherwise: str = "imagefolder") -> list[str]:
    """Return the options to type for this folder or file, beginning with data=. otherwise: the value of data= if the
    content does not show which one is right."""
    folder = expand_home(root)
    try:
        return _options(root, folder, otherwise)
    except OSError:  # not readable, which the validation of this data= reports
        return [f"data={otherwise}", f"data.root={root}"]


def _options(root: str, folder: Path, otherwise: str) -> list[str]:
    for name, marks in {"packed": (manifest.FILE,), "stl10": STL10}.items():
        if any((folder / mark).exists() for mark in marks):
            return [f"data={name}", f"data.root={root}"]
    if root.startswith(("s3://", "gs://", "http://", "https://")):
        return ["data=streamed", f"data.root={root}"]
    if (folder / KAGGLE / "train").is_dir():
        return ["data=imagenet", f"data.root={Path(root) / KAGGLE}"]
    if not folder.is_dir():
        name = "table" if folder.suffix.lower() in table.SUFFIXES else otherwise
        return [f"data={name}", f"data.root={root}"]
    keys = {"root": str(folder), "train_dir": "train", "val_dir": "val", "val_fraction": None}
    layout = find_layout(keys)
    if layout.train.is_dir():
        more = [] if layout.val.is_dir() else ["data.val_fraction=0.1"]
        return [f"data={_by_names(layout.train, otherwise)}", f"data.root={root}", *more]
    classes = class_folders(folder)
    if (
        len(classes) == 1 and not is_split(classes[0]) and class_folders(folder / classes[0])
    ):  # an archive unpacked into a folder of its own
        return _options(str(Path(root) / classes[0]), folder / classes[0], otherwise)
    if classes and not layout.val.is_dir():  # the folder itself contains the class folders
        options = ["data.train_dir=.", "data.val_fraction=0.1"]
        return [f"data={_by_names(folder, otherwise)}", f"data.root={root}", *options]
    return [f"data={otherwise}", f"data.root={root}"]


def _by_names(folder: Path, otherwise: str) -> str:
    """Return imagenet for about a thousand classes named by WordNet ID, and imagefolder for classes with other names.
    A few classes with such names can be read as either, but data=imagenet selects the recipe of the whole data set."""
    classes = class_folders(folder)
    if not all(re.fullmatch(r"n\d{8}", name) for name in classes):
        return "imagefolder"
    return "imagenet" if len(classes) >= MIN_IMAGENET else otherwise
