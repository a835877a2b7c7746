"""Collect the predictions for images without labels, and list those that are worth labelling next."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from imagenet_ddp.config.figures import UNLIKE
from imagenet_ddp.config.schema.predict import PredictConfig
from imagenet_ddp.curation import label_next
from imagenet_ddp.curation.decision_lists import DECISIONS
from imagenet_ddp.curation.wrong_labels import MOVE
from imagenet_ddp.data.contact_sheet import Line, draw_sheet, drawable, save_sheet
from imagenet_ddp.system.table_files import format_of
from imagenet_ddp.system.text import count_noun, percent
from imagenet_ddp.use.labelling import can_label, decisions_of, relabel_line
from imagenet_ddp.use.predictor import Predictor, Result

# prepare=relabel reads suggested and decision, as in the lists of a check
HEADER = ("rank", "path", "suggested", "probability", "why", "decision")
BETWEEN = 0.3  # difference of the two highest probabilities below which both classes are named
MOST_TILES = 256  # of the sheet
ALONE = "stands only for itself"  # why an image is chosen of which the net is not uncertain, and which no other is like
LEAST_LISTED = 10  # images of a list of which the second half is compared with the first


class Place(NamedTuple):
    """Where an image lies among the others. num_others: those not listed that are more like this one than like any
    other that is listed. likeness: cosine to the nearest one before it in the list, NaN for the first."""

    num_others: int
    likeness: float


class Chosen(NamedTuple):
    """An image to label. suggested: the predicted class. label: its name for display."""

    path: str
    suggested: str
    label: str
    why: str
    result: Result
    place: Place


class Candidates:
    """The images that could be read, with their predictions and features."""

    def __init__(self, predictor: Predictor):
        self._predictor = predictor
        self._paths: list[str] = []
        self._results: list[Result] = []

    def add(self, path: str, result: Result) -> None:
        """Add an image. result: with two or more of the most probable classes and the features. An image that could not
        be read is left out."""
        if result.top:
            self._paths.append(path)
            self._results.append(result)

    def choose(self, count: int) -> list[Chosen]:
        """Return the images to label, the most useful first: at most `count`. Those that are unlike the training images
        come last, in the places that the others leave, those first that are the least unlike them."""
        is_strange = np.array([result.is_known is False for result in self._results], bool)
        found = self._chosen_among(np.flatnonzero(~is_strange), count)
        strange = self._chosen_among(np.flatnonzero(is_strange), count - len(found))
        found += sorted(strange, key=lambda each: -(self._results[each[0]].familiarity or 0.0))
        return [self._described(position, place) for position, place in found]

    def _chosen_among(self, positions: np.ndarray, count: int) -> list[tuple[int, Place]]:
        """Return the positions to label, the most useful first: at most `count`. positions: int64 (N,)."""
        numbers: list[int] = positions.tolist()
        results = [self._results[number] for number in numbers]
        if not results:
            return []
        vectors = torch.stack([result.features for result in results if result.features is not None]).numpy()
        margins = np.array([_margin(result) for result in results])
        chosen = label_next.choose(vectors, margins, count)
        if not len(chosen):
            return []
        places = map(Place, *(column.tolist() for column in label_next.place(vectors, chosen)))
        return [(numbers[at], place) for at, place in zip(chosen.tolist(), places, strict=True)]

    def _described(self, position: int, place: Place) -> Chosen:
        path, result = self._paths[position], self._results[position]
        labels = [self._predictor.labels[index] for index, _ in result.top[:2]]
        if result.is_known is False:
            why = UNLIKE
        elif _margin(result) < BETWEEN and len(labels) > 1:
            why = f"between {labels[0]} and {labels[1]}"
        else:
            why = f"stands for {count_noun(place.num_others, 'other')}" if place.num_others else ALONE
        return Chosen(path, self._predictor.classes[result.top[0][0]], labels[0], why, result, place)

    def write_sheet(self, path: Path, chosen: Sequence[Chosen]) -> int:
        """Draw the first images in the order of their ranks, as the net sees them. Return how many."""
        read = [(rank, each, self._predictor.read(each.path)) for rank, each in enumerate(chosen[:MOST_TILES], 1)]
        tiles = [(rank, each, image) for rank, each, image in read if isinstance(image, Tensor)]
        if tiles:
            captions = [
                [Line(f"{rank}. {drawable(Path(each.path).name)}"),
                 Line(drawable(each.label), f" {percent(each.result.top[0][1], 0)}"),
                 Line(drawable(each.why), wraps=True)]
                for rank, each, _ in tiles
            ]  # fmt: skip
            pixels = torch.stack([image for _, _, image in tiles]).permute(0, 2, 3, 1)
            save_sheet(path, draw_sheet(pixels.contiguous(), captions))
        return len(tiles)


def tail_sentence(chosen: Sequence[Chosen]) -> str:
    """Return how much the second half of a list adds; "" for a short list. Those that are unlike the training images do
    not count."""
    known = [each for each in chosen if each.result.is_known is not False]
    if len(known) < LEAST_LISTED:
        return ""
    half = (len(known) + 1) // 2
    halves = known[:half], known[half:]
    sure = [float(np.mean([each.result.top[0][1] for each in part])) for part in halves]
    likeness = [float(np.nanmean([each.place.likeness for each in part])) for part in halves]
    is_less = sure[1] > sure[0], likeness[1] > likeness[0]
    adds = "add less than" if all(is_less) else "seem to add less than" if any(is_less) else "add as much as"
    which = " of those" * (len(known) < len(chosen))
    return (
        f"The last {len(known) - half:,}{which} {adds} the {half:,} before them: their likeliest class has "
        f"{percent(sure[1], 0)} on average (those before: {percent(sure[0], 0)}), and they are like one that stands "
        f"earlier by {likeness[1]:.2f} of at most 1 (those before: {likeness[0]:.2f})."
    )


def about(chosen: Sequence[Chosen], num_read: int, num_unlike: int, config: PredictConfig) -> list[str]:
    """Return sentences about the images to label. num_read: images that could be read. num_unlike: of those, the images
    that are unlike the training images."""
    lines = list[str]()
    if len(chosen) < (config.label_next or 0):
        rest = num_read - len(chosen)
        others = f"near-copies are left out ({count_noun(rest, 'image')})" if rest else "no others can be read"
        lines.append(f"There are fewer than label_next={config.label_next}, because {others}.")
    lines += [tail] if (tail := tail_sentence(chosen)) else []
    if num_unlike:
        num_listed = sum(each.result.is_known is False for each in chosen)
        listed = f"the last {num_listed:,}" if num_listed > 1 else "the last one" if num_listed else "none"
        are = "One image is" if num_unlike == 1 else f"{num_unlike:,} images are"
        lines.append(
            f"{are} {UNLIKE}, and probably of none of the classes: they get the places that the others leave ({listed} "
            "of the list). To see all, leave label_next out."
        )
    return lines


def next_step(chosen: Sequence[Chosen], config: PredictConfig) -> list[str]:
    """Return what to do with the list or the page, ending with the command."""
    kind = format_of(config.format, config.out)
    if not config.out:
        return ["Hint: set out=next.html for a page on which to choose the classes, out=next.csv for a list."]
    if not chosen or kind == "jsonl":
        return []
    if not can_label(config.data):
        return ["Give those that show one of the classes their label, and add them to the training images."]
    out = str(Path(config.out).with_suffix(".csv")) if kind == "xlsx" else config.out
    save = f", and save the list as {out}" if kind == "xlsx" else ""
    how = f"Write the class of each image, or {MOVE} for the suggested one, into the column decision{save}."
    if kind == "html":
        out = decisions_of(config)
        how = f"Open {config.out}, choose below each picture what it shows, and put {DECISIONS}, which it then makes, "
        how += "into the folder of the page."
    line = relabel_line(config, [each.path for each in chosen], out)
    return [how, f"Then move those with a class into its folder: `{line}`"]


def _margin(result: Result) -> float:
    shares = [share for _, share in result.top[:2]]
    return shares[0] - (shares[1] if len(shares) > 1 else 0.0)
