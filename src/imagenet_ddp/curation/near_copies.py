"""Find near-copies: images made of the same photograph, such as re-encoded, resized, cropped or mirrored ones.

The candidates are the images whose features are nearest. No cosine separates copies from photographs of like things, so
their pixels are compared (pixel_match.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from imagenet_ddp.curation.features import Features
from imagenet_ddp.curation.neighbours import nearest
from imagenet_ddp.curation.pixel_match import LEAST_AGREEMENT, SIDE, compare
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.cells import read_cells
from imagenet_ddp.data.sources.groups import first_of_each
from imagenet_ddp.data.sources.walk import map_concurrently
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.system.console import Progress
from imagenet_ddp.system.table_files import of_text_cell

NUM_CANDIDATES = 3  # nearest images whose pixels are compared with those of each image
LEAST_COSINE = 0.5  # of a candidate, to spend no time on images that are nothing alike
FILE = "near_copies.csv"
_CHUNK = 2048  # pairs compared between two lines of progress
COLUMNS = ("group", "path", "label", "split", "cosine", "agreement", "most_similar")


@dataclass(frozen=True)
class Pair:
    """Two images that show the same photograph. first, second: positions in the features, first < second; equal where
    the other image is not among them. cosine: of their features. agreement: share of the windows with texture that are
    the same (pixel_match.py)."""

    first: int
    second: int
    cosine: float
    agreement: float
    is_mirrored: bool


@dataclass(frozen=True)
class Group:
    """Images that pairs connect. members: positions in the features, in ascending order. is_across: some are for
    training and some for validation. is_two_classes: not all have the same class."""

    members: list[int]
    pairs: list[Pair]
    is_across: bool
    is_two_classes: bool


@dataclass(frozen=True)
class NearCopies:
    """The groups, those across train and val first, then those in two classes. num_compared: pairs of images whose
    pixels were compared. num_unread: images among them that could not be read again."""

    groups: list[Group]
    num_compared: int = 0
    num_unread: int = 0

    def group_of_each(self, number: int, exact: np.ndarray) -> np.ndarray:
        """Return a number for each of `number` images, int64 (number,), which the images of a group share. exact: as in
        find_near_copies."""
        near = np.array([(pair.first, pair.second) for pair in self.pairs], np.int64).reshape(-1, 2)
        return first_of_each(number, np.concatenate([near, exact]))

    @property
    def pairs(self) -> list[Pair]:
        return [pair for group in self.groups for pair in group.pairs]

    def leaked(self, features: Features) -> np.ndarray:
        """Return the positions of the validation images that are near-copies of training images, int64 (K,)."""
        members = [at for group in self.groups if group.is_across for at in group.members if features.is_val[at]]
        return np.array(sorted(members), np.int64)

    def rows(self, features: Features) -> list[tuple[Any, ...]]:
        """Return the rows of near_copies.csv, with COLUMNS. cosine, agreement and most_similar: of the pair of the
        image that agrees best; most_similar is empty if the other image is not among the features."""
        found = list[tuple[Any, ...]]()
        for number, group in enumerate(self.groups, 1):
            best_of: dict[int, Pair] = {}
            for pair in group.pairs:
                for at in (pair.first, pair.second):
                    best_of[at] = max(best_of.get(at, pair), pair, key=lambda each: each.agreement)
            for at in group.members:
                best = best_of[at]
                other = best.second if at == best.first else best.first
                label, split = features.labels[features.targets[at]], features.place(at)[0]
                path = "" if other == at else features.paths[other]
                figures = f"{best.cosine:.3f}", f"{best.agreement:.2f}", path
                found.append((number, features.paths[at], label, split, *figures))
        return found

    def among(self, features: Features, is_there: np.ndarray) -> "NearCopies":
        """Return the groups without the images that are gone, and without groups of which only one image is left.
        features: with the splits and classes that count now. is_there: bool, for each image of the features."""
        left = ([at for at in group.members if is_there[at]] for group in self.groups)
        parts = (
            (members, _pairs_left(group.pairs, is_there))
            for members, group in zip(left, self.groups, strict=True)
            if len(members) > 1
        )
        return replace(self, groups=_groups_of(parts, features))


def _pairs_left(pairs: Sequence[Pair], is_there: np.ndarray) -> list[Pair]:
    """Return the pairs without the images that are gone, with pairs of one image for those that have no other left."""
    left = [pair for pair in pairs if is_there[pair.first] and is_there[pair.second]]
    has_other = {at for pair in left for at in (pair.first, pair.second)}
    alone = [(at, pair) for pair in pairs for at in (pair.first, pair.second) if is_there[at] and at not in has_other]
    return left + [replace(pair, first=at, second=at) for at, pair in alone]


def read_list(file: Path) -> tuple[Features, NearCopies]:
    """Read the list of a check, FILE. Return (its images, without features; their groups). Raises ConfigError if it is
    no such list."""
    try:
        cells = read_cells(file, {name: name for name in COLUMNS}, "near_copies").columns
        paths, others = ([*map(of_text_cell, cells[name])] for name in ("path", "most_similar"))
        labels = sorted({*cells["label"]})
        class_of = {label: number for number, label in enumerate(labels)}
        targets = np.array([class_of[label] for label in cells["label"]], np.int64)
        is_val = np.array([split == "val" for split in cells["split"]], bool)
        figures = zip(cells["cosine"], cells["agreement"], strict=True)
        row_of, groups = {path: row for row, path in enumerate(paths)}, dict[str, tuple[list[int], dict[Any, Pair]]]()
        for row, (name, other, (cosine, agreement)) in enumerate(zip(cells["group"], others, figures, strict=True)):
            members, pairs = groups.setdefault(name, ([], {}))
            first, second = sorted((row, row_of.get(other, row)))
            pairs[first, second] = Pair(first, second, float(cosine), float(agreement), is_mirrored=False)
            members.append(row)
    except OSError as error:
        what = f"near_copies={file} cannot be read: {error.strerror}"
        raise ConfigError(Mistake(what, ("near_copies",), hint="run the check again")) from error
    except (KeyError, ValueError) as error:
        what = (
            f"near_copies={file} must be the list of a check, with the columns {', '.join(COLUMNS)}, but is not "
            f"({type(error).__name__}: {error})"
        )
        raise ConfigError(Mistake(what, ("near_copies",), hint="run the check again")) from error
    images = replace(
        Features.bare(np.zeros((len(paths), 0), np.float32), np.zeros(len(paths), np.uint64), ""),
        targets=targets, is_val=is_val, index=np.arange(len(paths)), paths=paths, classes=labels, labels=labels,
    )  # fmt: skip
    return images, NearCopies(_groups_of(((members, [*pairs.values()]) for members, pairs in groups.values()), images))


def find_near_copies(
    features: Features,
    images: Mapping[str, Images],
    exact: np.ndarray | None = None,
) -> NearCopies:
    """Return the near-copies among the images; one that cannot be read again has none. images: train and val, from
    which the features are. exact: pairs of positions (P, 2) of images with the same bytes; groups of nothing else are
    left out. Shows the progress."""
    first, second, cosines = candidates(features.vectors)
    opened = np.unique(np.concatenate([first, second]))
    thumbnails = np.zeros((len(opened), SIDE, SIDE), np.uint8)
    is_read = np.zeros(len(opened), bool)

    def read(at: int) -> np.ndarray | None:
        split, index = features.place(at)
        return read_thumbnail(images[split], index)

    with closing(Progress("near-copies", len(opened), "images")) as progress:
        for number, pixels in enumerate(map_concurrently(read, opened.tolist())):
            if pixels is not None:
                thumbnails[number], is_read[number] = pixels, True
            progress.add(1)
    both = np.flatnonzero(is_read[np.searchsorted(opened, first)] & is_read[np.searchsorted(opened, second)])
    first, second, cosines = first[both], second[both], cosines[both]
    a, b = np.searchsorted(opened, first), np.searchsorted(opened, second)
    agreement, is_mirrored = np.zeros(len(a), np.float32), np.zeros(len(a), bool)
    with closing(Progress("near-copies", len(a), "pairs")) as progress:
        for begin in range(0, len(a), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            agreement[part], is_mirrored[part] = compare(thumbnails, a[part], b[part])
            progress.add(len(a[part]))
    columns = first, second, cosines, agreement, is_mirrored
    rows = zip(*(column.tolist() for column in columns), strict=True)
    pairs = [Pair(*row) for row in rows if row[3] >= LEAST_AGREEMENT]
    same = first_of_each(len(features), np.zeros((0, 2), np.int64) if exact is None else exact)
    groups = [group for group in _groups(pairs, features) if len(np.unique(same[group.members])) > 1]
    return NearCopies(groups, len(both), int((~is_read).sum()))


def candidates(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the pairs (first, second, cosine) of images of which one is among the NUM_CANDIDATES nearest of the other,
    int64, int64 and float32 (P,). first < second. vectors: float (N, D)."""
    cosines, others = nearest(vectors, vectors, NUM_CANDIDATES, exclude_self=True)
    rows = np.repeat(np.arange(len(vectors)), others.shape[1])
    pairs = np.stack([np.minimum(rows, others.reshape(-1)), np.maximum(rows, others.reshape(-1))], 1)
    pairs, cosines = pairs[cosines.reshape(-1) >= LEAST_COSINE], cosines[cosines >= LEAST_COSINE]
    pairs, at = np.unique(pairs, axis=0, return_index=True)
    return pairs[:, 0], pairs[:, 1], cosines[at]


def read_thumbnail(images: Images, index: int) -> np.ndarray | None:
    """Return an image as uint8 (SIDE, SIDE), grey; None if it cannot be read."""
    try:
        picture = images.open(index)
        pixels = picture.region(0, 0, picture.height, picture.width, 2 * SIDE)
    except Exception:  # the file may be gone, and a user's own source may raise anything
        return None
    grey = Image.fromarray(np.ascontiguousarray(pixels)).convert("L")
    return np.asarray(grey.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def _groups(pairs: Sequence[Pair], features: Features) -> list[Group]:
    ends = np.array([(pair.first, pair.second) for pair in pairs], np.int64).reshape(-1, 2)
    number_of = first_of_each(len(features), ends)
    of_group: dict[int, list[Pair]] = {}
    for pair in pairs:
        of_group.setdefault(int(number_of[pair.first]), []).append(pair)
    return _groups_of(
        ((sorted({at for pair in each for at in (pair.first, pair.second)}), each) for each in of_group.values()),
        features,
    )


def _groups_of(parts: Iterable[tuple[list[int], list[Pair]]], features: Features) -> list[Group]:
    """Return the groups with these members and pairs, those that matter most first."""
    found = list[Group]()
    for members, pairs in parts:
        is_val, targets = features.is_val[members], features.targets[members]
        found.append(Group(members, pairs, bool(is_val.any() and not is_val.all()), len(np.unique(targets)) > 1))
    return sorted(found, key=lambda group: (not group.is_across, not group.is_two_classes, group.members))
