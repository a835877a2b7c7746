"""How the images lie, looked at whole: classes, counts, a sample that is read. No torch: what reads is handed in.

`cli/parse.py` looks at names before every start, within a second; this counts every file, as long as it is given time.
"""

import contextlib
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from imagenet_ddp.data import validate
from imagenet_ddp.data.sources import shapes
from imagenet_ddp.data.sources.folder.scan import LinkFilter, class_folders, image_names, is_image
from imagenet_ddp.data.sources.packed import manifest
from imagenet_ddp.system import paths
from imagenet_ddp.system.text import count_noun, shorten_list

# ILSVRC-2012: images in all, fewest and most of a class. Source: Russakovsky et al. 2015, arXiv:1409.0575, table 2.
IMAGENET = {"train": (1_281_167, 732, 1_300), "val": (50_000, 50, 50)}
NUM_IMAGENET_CLASSES = 1_000
UNEVEN = 10  # largest class over smallest, from where on it is said


@dataclass
class Split:
    """One folder of class folders."""

    folder: Path
    counts: dict[str, int]  # class -> images, those that were counted in time
    num_classes: int
    samples: list[Path]  # one image of each class
    num_stray: int  # images beside the class folders, which no one reads

    @property
    def num_images(self) -> int:
        return sum(self.counts.values())

    @property
    def is_whole(self) -> bool:
        """False: the time was up before all classes were counted."""
        return len(self.counts) == self.num_classes


@dataclass
class Layout:
    """mistakes: sentences with a Hint, none where all is well. notes: what else is worth a word."""

    mistakes: list[str]
    notes: list[str] = field(default_factory=list)
    splits: dict[str, Split] = field(default_factory=dict)  # train, val; none where the data lies in no folders
    num_classes: int | None = None


def examine(data: Mapping[str, Any], seed: int, environ: Mapping[str, str], budget_s: float = 20.0) -> Layout:
    """data: the resolved data.* keys. Nothing is written, generated or downloaded. budget_s: for counting."""
    layout = Layout([_with_way_out(text, data) for text in validate.validate({"data": data}, environ)])
    if layout.mistakes or data["_target_"]:
        return layout
    if data["name"] == "stl10":
        _stl10(layout, data)
        return layout
    if data["name"] in ("packed", "streamed"):
        _packed(layout, data)
        return layout
    if data["name"] == "shapes":
        root = Path(data["root"]) if data["root"] else paths.cache_dir(environ) / f"shapes-v{shapes.VERSION}-seed{seed}"
        layout.num_classes = len(shapes.CLASSES)
        if not (root / shapes.MARK).is_file():
            train, val = (count * len(shapes.CLASSES) for count in shapes.NUM_PER_CLASS.values())
            layout.notes.append(f"{train} training and {val} validation images will be drawn in {root}")
            return layout
    else:
        root = Path(data["root"])
    end = time.monotonic() + budget_s
    names = ["train"] if data["val_fraction"] is not None else ["train", "val"]
    for name in names:
        layout.splits[name] = count(root / data[f"{name}_dir"], seed, end)
    layout.num_classes = layout.splits["train"].num_classes
    _judge(layout, data)
    return layout


def count(folder: Path, seed: int, end: float) -> Split:
    """Until time.monotonic() is `end`. Eight threads, because a network disk answers each folder late."""
    classes = class_folders(folder)
    within = LinkFilter(folder, classes)

    def of_class(name: str) -> tuple[int, Path | None] | None:
        if time.monotonic() > end:
            return None
        images = image_names(folder / name, within)
        return len(images), folder / name / random.Random(os.fsencode(f"{seed} {name}")).choice(
            images
        ) if images else None

    with ThreadPoolExecutor(8) as pool:
        found = {name: result for name, result in zip(classes, pool.map(of_class, classes), strict=True) if result}
    with os.scandir(folder) as entries:
        num_stray = sum(is_image(entry.name) and entry.is_file() for entry in entries)
    samples = [path for _, path in found.values() if path is not None]
    random.Random(seed).shuffle(samples)
    return Split(folder, {name: number for name, (number, _) in found.items()}, len(classes), samples, num_stray)


@dataclass
class Reading:
    """Images read from the disk and decoded, by one thread."""

    num_read: int
    seconds: float
    mistakes: list[str]

    @property
    def images_per_s(self) -> float:
        return self.num_read / self.seconds if self.seconds else 0.0


def read_samples(layout: Layout, decode: Callable[[bytes, str], Any], budget_s: float = 5.0) -> Reading:
    """One image of each class and split, as many as the time allows, splits taking turns. decode: raises for an image
    that cannot be read, with a message that names the file."""
    from imagenet_ddp.data.sources.folder.images import read_file  # torch

    begin, number, mistakes = time.monotonic(), 0, []
    for path in _in_turns([split.samples for split in layout.splits.values()]):
        try:
            decode(read_file(str(path)), str(path))
        except OSError as error:
            mistakes.append(f"{path} cannot be read: {error.strerror}. Hint: chmod u+r, or copy it again.")
        except Exception as error:  # the decoder's own
            mistakes.append(f"{str(error).rstrip('.')}. Hint: copy that file again, or remove it.")
        number += 1
        if time.monotonic() - begin > budget_s:
            break
    return Reading(number, time.monotonic() - begin, mistakes)


def _in_turns(lists: list[list[Path]]) -> Iterator[Path]:
    return (path for row in itertools.zip_longest(*lists) for path in row if path is not None)


def reading_s(
    data: Mapping[str, Any], read: Callable[[bytes, str], Any], budget_s: float, num_classes: int = 16
) -> float:
    """Seconds per image from the disk to what the net takes, by one thread; 0 where there are no image files. A few
    training images of a few classes, read twice where time allows: the first time warms up."""
    from imagenet_ddp.data.sources.folder.images import read_file  # torch

    folder = Path(data["root"] or "") / data["train_dir"]
    if data["_target_"] or not data["root"] or not folder.is_dir():
        return 0.0
    classes = class_folders(folder)
    within = LinkFilter(folder, classes)
    paths = [
        folder / name / image for name in classes[:num_classes] for image in image_names(folder / name, within)[:4]
    ]
    begin, found = time.monotonic(), 0.0
    for _ in range(2):
        start, number = time.monotonic(), 0
        for path in paths:
            with contextlib.suppress(Exception):  # what cannot be read is another check's
                read(read_file(str(path)), str(path))
            number += 1
            if time.monotonic() - begin > budget_s:
                break
        found = (time.monotonic() - start) / number if number else 0.0
        if time.monotonic() - begin > budget_s / 2:
            break
    return found


# ---- judging -------------------------------------------------------------------------------------------------------


def _judge(layout: Layout, data: Mapping[str, Any]) -> None:
    for name, split in layout.splits.items():
        if split.num_stray:
            hint = (
                _way_to_sort(Path(data["root"]), split.folder) if data["name"] == "imagenet" and name == "val" else ""
            )
            layout.mistakes.append(
                f"{count_noun(split.num_stray, 'image')} in {split.folder} itself, beside its class folders, would not "
                f"be read. Hint: {hint or 'move each into the folder of its class, or away'}."
            )
        if not split.is_whole:
            layout.notes.append(f"{name}: counted {len(split.counts):,} of {split.num_classes:,} classes, no more time")
            continue
        if data["name"] == "imagenet":
            layout.mistakes += _against_imagenet(name, split)
        least, most = (choose(split.counts, key=split.counts.__getitem__) for choose in (min, max))
        if split.counts[most] > UNEVEN * max(split.counts[least], 1):
            layout.notes.append(
                f"{name} is uneven: {split.counts[most]:,} images of {most}, {split.counts[least]:,} of {least}"
            )
    if data["val_fraction"] is not None and (single := [k for k, n in layout.splits["train"].counts.items() if n == 1]):
        layout.mistakes.append(
            f"every class must have 2 images, so that data.val_fraction can take one, but "
            f"{shorten_list(single)} {'has' if len(single) == 1 else 'have'} 1. Hint: add images, or remove the folder."
        )
    if len(layout.splits) == 2 and layout.splits["val"].num_images > layout.splits["train"].num_images:
        layout.notes.append("more validation than training images: are the two folders swapped?")


def _against_imagenet(name: str, split: Split) -> list[str]:
    """ILSVRC-2012 whole, or what is missing."""
    known = {line.partition("\t")[0] for line in _imagenet_classes()}
    images, least, most = IMAGENET[name]
    if split.num_classes == NUM_IMAGENET_CLASSES and split.num_images == images:
        return []
    reasons = []
    if missing := sorted(known - split.counts.keys()):
        reasons.append(f"{count_noun(len(missing), 'class')} missing: {shorten_list(missing)}")
    if few := [f"{key} ({number})" for key, number in split.counts.items() if number < least]:
        reasons.append(f"{count_noun(len(few), 'class')} with fewer than {least}: {shorten_list(few)}")
    if many := [f"{key} ({number})" for key, number in split.counts.items() if number > most]:
        reasons.append(f"{count_noun(len(many), 'class')} with more than {most}: {shorten_list(many)}")
    return [
        f"data=imagenet expects {images:,} images of {NUM_IMAGENET_CLASSES:,} classes in {name}, but {split.folder} "
        f"has {split.num_images:,} of {split.num_classes:,}{''.join(f'; {reason}' for reason in reasons)}. "
        "Hint: unpack those classes again; for a part of ImageNet, data=imagefolder."
    ]


def _imagenet_classes() -> list[str]:
    table = resources.files("imagenet_ddp.data").joinpath("imagenet_classes.tsv")
    return table.read_text(encoding="utf-8").splitlines()


def _with_way_out(text: str, data: Mapping[str, Any]) -> str:
    """A sentence of cli/parse.py; where it is an ImageNet download in one of its usual states, what to type."""
    if data["name"] not in validate.OF_FOLDERS or not data["root"]:
        return text
    root = Path(data["root"])
    train, val = root / data["train_dir"], root / data["val_dir"]
    found = text.partition(" Hint: ")[0]
    unpacked = root / "Data" / "CLS-LOC"
    if "does not exist" in found and unpacked.is_dir():
        return f"{found} Hint: this is Kaggle's archive: data.root={unpacked}."
    if f"{val} " in found and "images but no class folders" in found:
        return f"{found} Hint: {_way_to_sort(root, val)}."
    if f"{train} " in found and "no class folders" in found and any(train.glob("n*.tar")):
        line = f'cd {train} && for f in n*.tar; do mkdir -p "${{f%.tar}}" && tar xf "$f" -C "${{f%.tar}}"; done'
        return f"{found} Hint: the archives of the classes are still packed: `{line}`."
    return text


def _way_to_sort(root: Path, val: Path) -> str:
    """ImageNet's validation images come flat, and their classes in another file."""
    names = "LOC_val_solution.csv"
    for folder in (root, *root.absolute().parents[:3]):
        if (folder / names).is_file():  # Kaggle's: one line per image, "ILSVRC2012_val_00000001,n01751748 110 24 ..."
            line = (
                f"cd {val} && tail -n +2 {(folder / names).absolute()} | tr ',' ' ' | while read -r i c rest; "
                'do mkdir -p "$c" && mv "$i.JPEG" "$c/"; done'
            )
            return f"{names} says the class of each: `{line}`"
    heap, classes = "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
    places = (root, *root.absolute().parents[:2])
    archives = next((place for place in places if (place / heap).is_file() and (place / classes).is_file()), None)
    line = (
        f"mv {val} {val}.flat && python -m imagenet_ddp.prepare prepare=imagenet archive_dir={archives or 'ARCHIVES'} "
        f"out={root}"
    )
    where = f"from the archives in {archives}" if archives else f"with {heap} and {classes} in a folder ARCHIVES"
    return f"sort the images into {val}/<class>/; {where}, this does it: `{line}`"


def _stl10(layout: Layout, data: Mapping[str, Any]) -> None:
    from imagenet_ddp.data.sources import stl10  # numpy

    root = Path(data["root"] or "data")
    folder = root / stl10.FOLDER
    layout.num_classes = 10
    if not folder.is_dir():
        what = "unpacked" if (root / stl10.OFFICIAL.name).exists() else "downloaded (2.64 GB) and unpacked"
        layout.notes.append(f"STL-10 will be {what} into {folder}")
        return
    layout.num_classes = len(stl10.class_names(folder))
    layout.notes += [text.rstrip(".") for text in stl10.notes(folder)]
    stl10.read_split(folder, "train", data["fold"])  # raises ConfigError
    stl10.read_split(folder, "test", None)


def _packed(layout: Layout, data: Mapping[str, Any]) -> None:
    if data["name"] == "streamed":
        return  # nothing is fetched here
    found = manifest.read(Path(data["root"]))
    layout.num_classes = len(found.classes)
    counts = [f"{split.num_images:,} {name}" for name, split in found.splits.items()]
    side = f"short side {found.short_side}" if found.short_side else "sizes as they were"
    left_out = sum(len(split.left_out) for split in found.splits.values())
    more = f"; {left_out} unreadable ones were left out" if left_out else ""
    layout.notes.append(f"packed as {found.form}, {side}: {' and '.join(counts)} images{more}")
