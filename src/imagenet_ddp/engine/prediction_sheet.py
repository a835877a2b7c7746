"""Draw predictions as a contact sheet: each image above its most likely classes, optionally with a map that shows where
the net found the first class."""

from pathlib import Path

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F  # pyright: ignore[reportMissingTypeStubs]

from imagenet_ddp.data.contact_sheet import COLUMNS, Line, draw_sheet, drawable, save_sheet
from imagenet_ddp.data.decode import UnreadableImage
from imagenet_ddp.engine.predictor import Predictor
from imagenet_ddp.models.class_activation import overlay

MOST_IMAGES = 50 * COLUMNS
SIDE = 128  # width and height of a tile, in pixels
GREY = 200  # grey level of the tile for an unreadable image, 0 to 255
NAMED = 3  # number of classes named below an image


class SheetWriter:
    """Collect predictions, and draw them in `close`. method: the method for Predictor.explain, whose map becomes a
    second tile for each image; None for no maps."""

    def __init__(self, path: Path, predictor: Predictor, method: str | None):
        self._path, self._predictor, self._method = path, predictor, method
        self._tiles: list[Tensor] = []  # uint8 (3, SIDE, SIDE)
        self._captions: list[list[Line]] = []

    def write(self, path: str, top: list[tuple[int, float]], error: str, image: Tensor | UnreadableImage) -> None:
        """Add one image. top: (class index, probability) pairs, most likely first; empty if the image could not be
        read. error: the reason in that case."""
        name = Line(drawable(Path(path).name))
        if isinstance(image, UnreadableImage):
            grey = torch.full((3, SIDE, SIDE), GREY, dtype=torch.uint8)
            self._add(grey, [name, Line(drawable(error))])
            if self._method is not None:  # else later images and their maps would be in different rows
                self._add(grey, [Line("")])
            return
        labels = self._predictor.labels
        self._add(image, [name, *(Line(drawable(labels[index]), f" {share:.2f}") for index, share in top[:NAMED])])
        if self._method is not None:
            assert self._predictor.explain is not None
            index = top[0][0]
            (activation,) = self._predictor.explain([image], [index], self._method)
            self._add(overlay(image, activation), [Line(""), Line(drawable(labels[index]))])

    def _add(self, image: Tensor, lines: list[Line]) -> None:
        side = min(image.shape[1:])
        square = F.resize(F.center_crop(image, [side, side]), [SIDE, SIDE], antialias=True)
        self._tiles.append(square)
        self._captions.append(lines)

    def close(self) -> None:
        save_sheet(self._path, draw_sheet(torch.stack(self._tiles).permute(0, 2, 3, 1), self._captions))
