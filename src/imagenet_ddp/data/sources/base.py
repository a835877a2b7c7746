"""Define the interface of a source of images. Subclass `Images` for your own images (`data._target_=my.Source`).

A value of data.name is a `SourceType` (registry.py lists them), which looks at the disk once and hands its `Scan` on.
No file of this folder imports torch at its top, because a command looks at its data before.
"""

import os
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.data.decoding.decode import DEFAULT, Picture, Pixels, Reading, decode_whole
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.system.text import count_noun, printable, shorten_list

if TYPE_CHECKING:
    from torch import Tensor


class Images:
    """One split of a data set, whose images are read by position.

    `targets` and `read` are required. All other methods have defaults, which a source may override. The object is
    pickled into each DataLoader worker, so store arrays rather than lists of strings.
    """

    # int64 (N,): position of each image's class in Source.classes; data.labels=several: uint8 (N, classes), 1 for each
    # label of the image
    targets: np.ndarray
    weights: np.ndarray | None = None  # float32 (N,): factor of each image's loss in training; None: 1
    location: str = ""  # folder or address of the images, shown in messages
    draws: bool = False  # whether reading an image draws random numbers, of Python, NumPy or torch
    is_encoded: bool = False  # whether `encoded` returns image files
    reading: Reading = DEFAULT  # options for decoding these files

    def __len__(self) -> int:
        return len(self.targets)

    def num_of_each(self, num_classes: int) -> np.ndarray:
        """Return the number of images of each class, int64 (num_classes,)."""
        if self.targets.ndim == 2:
            return self.targets.sum(0, dtype=np.int64)
        return np.bincount(self.targets, minlength=num_classes)

    def read(self, index: int) -> "Tensor":
        """Return the decoded image: uint8 (3, H, W), RGB. Raises UnreadableImage or OSError."""
        return decode_whole(self.open(index))

    def path(self, index: int) -> str:
        """Return the name of the image for messages and CSV files."""
        return f"image {index}"

    def open(self, index: int) -> Picture:
        """Return the image as a Picture, which decodes only the requested region. Raises the same errors as `read`."""
        return Pixels(self.read(index).permute(1, 2, 0).numpy())

    def encoded(self, index: int) -> bytes | None:
        """Return the stored bytes of the image, which `prepare` hashes and copies, or None if there are none."""
        return None

    def verify(self, index: int) -> None:
        """Raise UnreadableImage if a stored checksum does not match."""

    def order(self, seed: int, epoch: int) -> np.ndarray | None:
        """Return the order of an epoch, int64 (N,), for storage on which a random order is slow. Return None if any
        order may be used."""
        return None


SPLIT_WORDS = {"train": "training", "val": "validation"}  # before "images"


@dataclass
class Source:
    """Classes and splits of a data set.

    classes: names that are compared with those of a checkpoint (folder names). labels: names shown to users, by default
    the same.
    """

    classes: list[str]
    train: Images | None
    val: Images | None
    labels: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # sentences for the start of the log
    digest: str = ""  # hash of the images' names and order, which must be equal on all ranks
    doubts: list[str] = field(default_factory=list)  # sentences about what hardly anyone wants, or what train refuses
    wrong_root: Mistake | None = None  # one of the notes, if the classes hardly are those that a person means

    def __post_init__(self) -> None:
        self.labels = self.labels or list(self.classes)
        if self.train is not None and (note := lookalikes(self.classes)):
            self.notes.append(note)
        for images in self.splits.values():
            if images.weights is not None:
                images.weights = np.asarray(images.weights, np.float32)

    @property
    def splits(self) -> dict[str, Images]:
        """Return the images of train and of val, as far as there are any."""
        return {name: each for name, each in (("train", self.train), ("val", self.val)) if each is not None}

    def settle_targets(self, owner: str, labels: str) -> list[str]:
        """Convert the targets of both splits to int64, or uint8 for several labels. Return a message for each split
        with others than positions in `classes`. owner: the option that chose the source. labels: value of
        data.labels."""
        if labels == "several":
            return self._settle_several(owner)
        found = []
        for name, images in self.splits.items():
            given, size = images.targets, len(self.classes)
            targets = np.asarray(given)
            is_whole = targets.dtype.kind in "biu" and targets.ndim == 1
            if is_whole and not (len(targets) and (targets.min() < 0 or targets.max() >= size)):
                if targets.dtype != np.int64 or given is not targets:
                    images.targets = targets.astype(np.int64)
                continue
            wrong = np.arange(len(targets))
            if targets.dtype.kind in "biuf" and targets.ndim == 1:
                outside = np.flatnonzero(~((targets >= 0) & (targets < size) & (targets % 1 == 0)))
                wrong = outside if len(outside) or is_whole else wrong
            hint = "correct them, or name all classes in Source.classes" if is_whole else "make targets int64 (N,)"
            first, have = int(wrong[0]), "has" if len(wrong) == 1 else "have"
            label = f"{printable(str(targets[first]))[:40]} ({targets.dtype})"
            found.append(
                f"{owner}: the targets of the {SPLIT_WORDS[name]} images must be integers from 0 to {size - 1} "
                f"(positions in Source.classes), but {count_noun(len(wrong), 'image')} of {len(targets):,} {have} "
                f"another, the first of them number {first}, {images.path(first)}: {label}. Hint: {hint}."
            )
        return found

    def _settle_several(self, owner: str) -> list[str]:
        found = []
        for name, images in self.splits.items():
            targets = np.asarray(images.targets)
            if targets.shape == (len(targets), len(self.classes)) and np.isin(targets, (0, 1)).all():
                images.targets = targets.astype(np.uint8)
                continue
            found.append(
                f"{owner}: with data.labels=several, the targets of the {SPLIT_WORDS[name]} images must be 0 or 1 for "
                f"each of {len(self.classes)} classes, (N, {len(self.classes)}), got {targets.dtype} {targets.shape}. "
                "Hint: name all classes in Source.classes, or set data.labels=one."
            )
        return found

    def classes_without_validation(self) -> list[str]:
        """Return the classes that have training images but no validation images."""
        if self.train is None or self.val is None:
            return []
        train, val = (each.num_of_each(len(self.classes)) for each in (self.train, self.val))
        return [self.classes[target] for target in np.flatnonzero((train > 0) & (val == 0)).tolist()]


@dataclass(frozen=True)
class Names:
    """Names of images. text: uint8, all names, concatenated. ends: int64 (N,), the position at which each name ends.

    A list of a million strings would be copied into every forked worker, because reading it changes reference counts.
    """

    text: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, names: Iterable[str]) -> "Names":
        encoded = [os.fsencode(name) for name in names]
        ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends)

    def __getitem__(self, index: int) -> str:
        begin = int(self.ends[index - 1]) if index else 0
        return os.fsdecode(self.text[begin : int(self.ends[index])].tobytes())


class Pending(NamedTuple):
    """What opening a source would first generate, download or fetch. num_classes: None if it is not known before."""

    note: str
    num_classes: int | None = None


# Keys of all sources that change what is found. The decoder is not among them: each process chooses the same.
_KEYS = ("name", "_target_", "args", "labels", "root", "exif_orientation", "white_level")
D = TypeVar("D", bound=DataConfig)


@dataclass(frozen=True)
class Scan:
    """What one look at a source has found, before torch is imported. Each process of this machine opens the source from
    it, without looking again, so it can be pickled.

    data, seed, purpose: for which it was made. mistakes: messages with a hint. open: returns the source; set unless
    there are mistakes. Raises ConfigError for what can be found only by opening it. pending: what it would first have
    to make; None if the images are there.
    """

    data: DataConfig
    seed: int
    purpose: Purpose
    mistakes: Sequence[Mistake | str] = ()
    open: Callable[[], Source] | None = None
    pending: Pending | None = None

    def fits(self, data: DataConfig, seed: int, purpose: Purpose) -> bool:
        """Return whether another look would find the same."""
        keys = (*_KEYS, *(data.keys() - DataConfig().keys()))
        same = type(self.data) is type(data) and all(self.data[key] == data[key] for key in keys)
        return same and (self.seed, self.purpose) == (seed, purpose)


class SourceType(Generic[D]):
    """One value of data.name: how it is recognised, what a look at it finds, and how it is opened."""

    default_root: str | None = None  # used if data.root is null; None: data.root is required, or refused

    def __init__(self, options_for: Callable[[str, str], list[str]]):
        """options_for: registry.options_for, by which a source says what a folder is that is not of its kind."""
        self.options_for = options_for

    def scan(self, data: D, seed: int, purpose: Purpose, *, whole: bool = True) -> Scan:
        """Look at the names, sizes or the table that data.root holds, once. whole: False to find only the mistakes, for
        which one image of each class is enough."""
        raise NotImplementedError

    def implied(self, data: D) -> dict[str, Any]:
        """Return the data.* keys, with their values, that follow from what is found in data.root. They are set before
        the checks, in every command that trains."""
        return {}

    def recognise(self, root: str, folder: Path, otherwise: str) -> list[str]:
        """Return the options to type for a folder or file of this kind, or []. root: as typed; folder: its path.
        otherwise: the value of data= if the content fits several."""
        return []


def positions_of_each(numbers: np.ndarray, count: int = 0) -> list[np.ndarray]:
    """Return the positions of 0, of 1, ... and of the largest number, or of count - 1 if that is larger, each in
    ascending order. Sorts once: comparing all images with each class would take minutes for 14 million images of 21,843
    classes. numbers: int64 (N,), not negative."""
    ends = np.cumsum(np.bincount(numbers, minlength=count))
    return np.split(np.argsort(numbers, kind="stable"), ends[:-1])


def one_form(name: str) -> str:
    """Return the name in the Unicode form in which é is one character. macOS stores file names with two."""
    return unicodedata.normalize("NFC", name)


def lookalikes(names: Iterable[str]) -> str:
    """Return a sentence about classes whose names differ only in case or blanks, or "" if there are none. They stay
    different classes: handwritten letters may be a and A."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(" ".join(one_form(name).casefold().split()), []).append(name)
    found = [" and ".join(map(repr, group)) for group in groups.values() if len(group) > 1]
    if not found:
        return ""
    return (
        f"Classes whose names differ only in case or blanks are different classes: {shorten_list(found)}. "
        "Hint: if they are the same, give them one name."
    )
