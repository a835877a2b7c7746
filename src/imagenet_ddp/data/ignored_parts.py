"""Count the images whose files have parts that no net sees: pages after the first, and transparency."""

from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor

from imagenet_ddp.data.decoding.pixel_conversion import IGNORED_WORDS, Ignored
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.system.text import count_noun


class IgnoredParts:
    """Keep what is ignored of each image. Loader workers report the images of a batch that have such parts
    (Batch.ignored). say: writes a line to the log, about the first image of each kind."""

    def __init__(self, say: Callable[[str], None] = print):
        self._say, self._said = say, Ignored.NONE
        self._found: dict[str, Tensor] = {}  # split -> uint8 (N,), an Ignored for each image

    def add(self, split: str, images: Images, found: Mapping[int, int]) -> None:
        """Add images of a split. found: their positions, each with its Ignored."""
        of_split = self._found.setdefault(split, torch.zeros(len(images), dtype=torch.uint8))
        for index, value in found.items():
            of_split[index] = value
            for part in Ignored(value) & ~self._said:
                self._said |= part
                self._say(f"{images.path(index)} is an image {IGNORED_WORDS[part]}. The end of the log counts these.")

    def lines(self, trainer: L.Trainer, splits: Mapping[str, Images]) -> list[str]:
        """Return a sentence for each kind and split, about the images that any rank has loaded. Call on all ranks."""
        lines: list[str] = []
        for split, images in splits.items():
            mine = self._found.get(split, torch.zeros(len(images), dtype=torch.uint8))
            merged: Any = trainer.strategy.reduce(mine.to(trainer.strategy.root_device), reduce_op="max")  # pyright: ignore[reportUnknownMemberType]
            counts = {part: int((merged & part.value > 0).sum()) for part in Ignored}
            lines += [f"{split}: {count_noun(n, 'image')} {IGNORED_WORDS[part]}." for part, n in counts.items() if n]
        return lines
