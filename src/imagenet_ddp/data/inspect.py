"""Inspect a data set: list its classes, count its images and read a sample of them.

The inspection is slower and more thorough than that of validate.py. Decoders are passed in as arguments, so that
this module does not import torch.
"""

import itertools
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagenet_ddp.data import imagenet_layout, validate
from imagenet_ddp.data.sources import shapes
from imagenet_ddp.data.sources.class_names import one_form
from imagenet_ddp.data.sources.folder.disk_threads import map_concurrently
from imagenet_ddp.data.sources.folder.layout import find_layout
from imagenet_ddp.data.sources.folder.scan import class_folders, files_beside, list_folder
from imagenet_ddp.data.sources.packed import manifest
from imagenet_ddp.data.sources.table import table
from imagenet_ddp.system.text import count_noun, shorten_list

UNEVEN = 10  # a larger ratio of the largest class to the smallest is noted


@dataclass
class Split:
    """One folder of class folders, or the corresponding rows of a table."""

    folder: Path  # for a table, its file
    counts: dict[str, int]  # class -> number of images, for the classes counted within the time limit
    num_classes: int
    samples: list[Path]  # one image of each class
    num_stray: int  # images next to the class folders, which are never read

    @property
    def num_images(self) -> int:
        return sum(self.counts.values())

    @property
    def is_whole(self) -> bool:
        """Return whether all classes were counted within the time limit."""
        return len(self.counts) == self.num_classes


@dataclass
class Layout:
    """Result of an inspection. mistakes: messages with a hint. notes: other remarks."""

    mistakes: list[str]
    notes: list[str] = field(default_factory=list)
    splits: dict[str, Split] = field(default_factory=dict)  # train, val; empty without class folders or a table
    num_classes: int | None = None


def inspect_data(data: Mapping[str, Any], seed: int, environ: Mapping[str, str], budget_s: float = 20.0) -> Layout:
    """Inspect a data set without writing, generating or downloading anything. data: the resolved data.* keys. budget_s:
    time limit for counting images, in seconds."""
    more = f" {imagenet_layout.SEE}" if data["name"] == "imagenet" else ""
    layout = Layout([text + more for text in validate.validate({"data": data}, environ)])
    if layout.mistakes or data["_target_"] or data["name"] == "streamed":
        return layout
    if data["name"] == "stl10":
        _stl10(layout, data)
        return layout
    if data["name"] == "packed":
        _packed(layout, data)
        return layout
    root = shapes.cache_folder(seed, environ) if data["name"] == "shapes" else Path(data["root"])
    if data["name"] == "shapes" and not root.is_dir():
        layout.num_classes = len(shapes.CLASSES)
        train, val = (count * len(shapes.CLASSES) for count in shapes.NUM_PER_CLASS.values())
        layout.notes.append(f"{train} training and {val} validation images will be generated in {root}")
        return layout
    if data["name"] == "table":
        layout.splits = _table(data, seed, environ)
    else:
        end_s = time.monotonic() + budget_s
        folders = find_layout({**data, "root": str(root)})
        layout.notes += [folders.note.rstrip(".")] if folders.note else []
        layout.splits["train"] = _count(folders.train, seed, end_s)
        if data["val_fraction"] is None:
            layout.splits["val"] = _count(folders.val, seed, end_s)
    for name in layout.splits:
        _report_split(layout, data, name)
    layout.num_classes = layout.splits["train"].num_classes
    single = [name for name, number in layout.splits["train"].counts.items() if number == 1]
    if data["val_fraction"] is not None and single:
        layout.mistakes.append(
            f"every class must have at least 2 images, so that data.val_fraction can hold one out, but "
            f"{shorten_list(single)} {'has' if len(single) == 1 else 'have'} only 1. "
            "Hint: add images to the class, or remove it."
        )
    if len(layout.splits) == 2 and all(split.is_whole for split in layout.splits.values()):
        in_val = {one_form(name) for name, number in layout.splits["val"].counts.items() if number}
        if absent := [name for name in layout.splits["train"].counts if one_form(name) not in in_val]:
            names = shorten_list(absent)
            layout.notes.append(f"there are no validation images of {count_noun(len(absent), 'class')}: {names}")
    if len(layout.splits) == 2 and layout.splits["val"].num_images > layout.splits["train"].num_images:
        layout.notes.append("there are more validation images than training images: are the two splits swapped?")
    return layout


def _count(folder: Path, seed: int, end_s: float) -> Split:
    """Count the images of each class until time.monotonic() reaches end_s."""
    classes = class_folders(folder)

    def count_class(name: str) -> tuple[int, Path | None] | None:
        if time.monotonic() > end_s:
            return None
        images, _ = list_folder(folder / name)
        chosen = random.Random(os.fsencode(f"{seed} {name}")).choice(images) if images else None
        return len(images), folder / name / chosen if chosen else None

    counted = zip(classes, map_concurrently(count_class, classes), strict=True)
    found = {name: result for name, result in counted if result}
    num_stray = files_beside(folder)["beside"]
    samples = [path for _, path in found.values() if path is not None]
    random.Random(seed).shuffle(samples)
    return Split(folder, {name: number for name, (number, _) in found.items()}, len(classes), samples, num_stray)


def _table(data: Mapping[str, Any], seed: int, environ: Mapping[str, str]) -> dict[str, Split]:
    found, splits = table.read_table(data, environ), {}
    for name in ("train",) if found.splits is None else table.SPLITS:
        by_class: dict[str, list[int]] = {}
        for row in found.rows_of(name):
            by_class.setdefault(found.labels[row], []).append(row)
        chosen = [random.Random(f"{seed} {label}").choice(rows) for label, rows in by_class.items()]
        samples = [found.folder / found.paths[row] for row in chosen]
        random.Random(seed).shuffle(samples)
        counts = {label: len(by_class[label]) for label in sorted(by_class)}
        splits[name] = Split(found.file, counts, len(counts), samples, 0)
    return splits


def _report_split(layout: Layout, data: Mapping[str, Any], name: str) -> None:
    split = layout.splits[name]
    is_imagenet = data["name"] == "imagenet"
    if split.num_stray:
        more = f" {imagenet_layout.SEE}" if is_imagenet else ""
        layout.mistakes.append(
            f"every image must be in a class folder, but {count_noun(split.num_stray, 'image')} directly in "
            f"{split.folder} would not be read. Hint: move each image into the folder of its class, or out of "
            f"{split.folder}.{more}"
        )
    if not split.is_whole:
        layout.notes.append(
            f"{name}: counted {len(split.counts):,} of {split.num_classes:,} classes before the time limit"
        )
        return
    if is_imagenet:
        layout.mistakes += imagenet_layout.validate_counts(name, split.folder, split.counts)
    least, most = (choose(split.counts, key=split.counts.__getitem__) for choose in (min, max))
    if split.counts[most] > UNEVEN * max(split.counts[least], 1):
        layout.notes.append(
            f"{name} is imbalanced: {split.counts[most]:,} images of {most}, {split.counts[least]:,} of {least}"
        )


@dataclass
class SampleReading:
    """Result of reading images from the disk and decoding them in one thread."""

    times_s: list[float] = field(default_factory=list)  # one entry for each image that could be read
    mistakes: list[str] = field(default_factory=list)

    @property
    def num_read(self) -> int:
        return len(self.times_s)

    @property
    def images_per_s(self) -> float:
        return self.num_read / sum(self.times_s) if self.times_s else 0.0


def read_samples(layout: Layout, decode: Callable[[bytes, str], Any], budget_s: float = 5.0) -> SampleReading:
    """Read one image of each class and split, alternating between the splits, until budget_s seconds have passed.
    decode: called with the bytes and the path; raises an exception that names the file if the image is unreadable."""
    turns = itertools.zip_longest(*(split.samples for split in layout.splits.values()))
    return _read(filter(None, itertools.chain.from_iterable(turns)), decode, budget_s)


def reading_s(
    data: Mapping[str, Any], read: Callable[[bytes, str], Any], budget_s: float, num_classes: int = 16
) -> float:
    """Return the median time in seconds from reading a file to the model's input in one thread, over about
    4 × num_classes training images, or 0 if there are no image files. read: turns the bytes and the path of an image
    into the model's input. Measuring stops after budget_s seconds."""
    if data["_target_"] or not data["root"]:
        return 0.0
    folder = find_layout(data).train
    if data["name"] == "table":
        found = table.read_table(data, {})
        rows = found.rows_of("train")
        paths = (found.folder / found.paths[row] for row in rows[:: max(len(rows) // (4 * num_classes), 1)])
    elif folder.is_dir():
        classes = [folder / name for name in class_folders(folder)[:num_classes]]
        paths = (path / image for path in classes for image in list_folder(path)[0][:4])
    else:
        return 0.0
    return statistics.median(_read(paths, read, budget_s).times_s or [0.0])


def _read(paths: Iterable[Path], decode: Callable[[bytes, str], Any], budget_s: float) -> SampleReading:
    from imagenet_ddp.data.sources.folder.images import read_file  # here, because it imports torch

    begin_s, found = time.monotonic(), SampleReading()
    for path in paths:
        start_s = time.monotonic()
        try:
            decode(read_file(str(path)), str(path))
            found.times_s.append(time.monotonic() - start_s)
        except OSError as error:
            found.mistakes.append(
                f"{path} cannot be read: {error.strerror}. Hint: make the file readable (chmod u+r), or copy it again."
            )
        except Exception as error:  # raised by the decoder
            found.mistakes.append(f"{str(error).rstrip('.')}. Hint: copy that file again, or remove it.")
        if time.monotonic() - begin_s > budget_s:
            break
    return found


def _stl10(layout: Layout, data: Mapping[str, Any]) -> None:
    from imagenet_ddp.data.sources import stl10  # here, because it imports numpy

    root = Path(data["root"] or "data")
    folder = root / stl10.FOLDER
    layout.num_classes = 10
    if not folder.is_dir():
        what = "unpacked" if (root / stl10.OFFICIAL.name).exists() else "downloaded (2.64 GB) and unpacked"
        layout.notes.append(f"STL-10 will be {what} into {folder}")
        return
    layout.num_classes = len(stl10.class_names(folder))
    layout.notes += [text.rstrip(".") for text in stl10.notes(folder)]
    for split in ("train", "test"):
        stl10.read_split(folder, split, data["fold"])  # raises ConfigError


def _packed(layout: Layout, data: Mapping[str, Any]) -> None:
    found = manifest.read(Path(data["root"]))
    layout.num_classes = len(found.classes)
    counts = [f"{split.num_images:,} {name}" for name, split in found.splits.items()]
    side = f"short side {found.short_side}" if found.short_side else "original sizes"
    left_out = sum(len(split.left_out) for split in found.splits.values())
    more = f"; {count_noun(left_out, 'unreadable image')} left out" if left_out else ""
    layout.notes.append(f"packed as {found.form}, {side}: {' and '.join(counts)} images{more}")
