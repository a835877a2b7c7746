"""Collect the predictions for images without labels, and list those that are worth labelling next."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from imagenet_ddp.curation.label_next import choose
from imagenet_ddp.data.contact_sheet import Line, draw_sheet, drawable, save_sheet
from imagenet_ddp.system.text import percent
from imagenet_ddp.use.predictor import Predictor, Result

HEADER = ("rank", "path", "class", "probability", "why")
BETWEEN = 0.3  # difference of the two highest probabilities below which both classes are named
MOST_TILES = 256  # of the sheet


class Chosen(NamedTuple):
    """An image to label. label: the predicted class."""

    path: str
    label: str
    probability: float
    why: str


class Candidates:
    """The images that could be read, with their predictions and features."""

    def __init__(self, predictor: Predictor):
        self._predictor = predictor
        self._paths: list[str] = []
        self._results: list[Result] = []

    def add(self, path: str, result: Result) -> None:
        """Add an image. result: with the two most probable classes and the features. An image that could not be read
        is left out."""
        if result.top:
            self._paths.append(path)
            self._results.append(result)

    def choose(self, count: int) -> list[Chosen]:
        """Return the images to label, the most useful first: at most `count`."""
        if not self._results:
            return []
        vectors = torch.stack([result.features for result in self._results if result.features is not None]).numpy()
        margins = np.array([_margin(result) for result in self._results])
        found: list[int] = choose(vectors, margins, count).tolist()
        return [self._described(self._paths[position], self._results[position]) for position in found]

    def _described(self, path: str, result: Result) -> Chosen:
        labels = [self._predictor.labels[index] for index, _ in result.top[:2]]
        if result.is_known is False:
            why = "like none of the training images"
        elif _margin(result) < BETWEEN and len(labels) > 1:
            why = f"between {labels[0]} and {labels[1]}"
        else:
            why = "unlike those above"
        return Chosen(path, labels[0], result.top[0][1], why)

    def write_sheet(self, path: Path, chosen: list[Chosen]) -> int:
        """Draw the first images in the order of their ranks, as the net sees them. Return how many."""
        read = [(rank, each, self._predictor.read(each.path)) for rank, each in enumerate(chosen[:MOST_TILES], 1)]
        tiles = [(rank, each, image) for rank, each, image in read if isinstance(image, Tensor)]
        if tiles:
            captions = [
                [Line(f"{rank}. {drawable(Path(each.path).name)}"),
                 Line(drawable(each.label), f" {percent(each.probability, 0)}"),
                 Line(drawable(each.why), wraps=True)]
                for rank, each, _ in tiles
            ]  # fmt: skip
            pixels = torch.stack([image for _, _, image in tiles]).permute(0, 2, 3, 1)
            save_sheet(path, draw_sheet(pixels.contiguous(), captions))
        return len(tiles)


def _margin(result: Result) -> float:
    shares = [share for _, share in result.top[:2]]
    return shares[0] - (shares[1] if len(shares) > 1 else 0.0)
