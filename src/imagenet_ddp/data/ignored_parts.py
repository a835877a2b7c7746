"""Count the images whose files have parts that are left out of their pixels: pages after the first, and
transparency."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from imagenet_ddp.data.decoding.pixel_conversion import IGNORED_WORDS, Ignored
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.system.text import count_noun


class IgnoredParts:
    """Keep what is ignored of each image. Loader workers report the images of a batch that have such parts
    (Batch.ignored). say: writes a line, about the first image of each kind."""

    def __init__(self, say: Callable[[str], None] = print):
        self._say, self._said = say, Ignored.NONE
        self._found: dict[str, Tensor] = {}  # split -> uint8 (N,), an Ignored for each image

    def add(self, split: str, images: Images, found: Mapping[int, int]) -> None:
        """Add images of a split. found: their positions, each with its Ignored."""
        if split not in self._found:
            self._found[split] = torch.zeros(len(images), dtype=torch.uint8)
        of_split = self._found[split]
        for index, value in found.items():
            of_split[index] = value
            for part in Ignored(value) & ~self._said:
                self._said |= part
                self._say(f"{images.path(index)} is an image {IGNORED_WORDS[part]}. These are counted at the end.")

    def lines(self, splits: Mapping[str, Images], merge: Callable[[Tensor], Tensor] = torch.clone) -> list[str]:
        """Return a sentence for each kind and split. merge: returns the largest values of all ranks, on which this
        method is then called together."""
        lines: list[str] = []
        for split, images in splits.items():
            merged = merge(self._found.get(split, torch.zeros(len(images), dtype=torch.uint8)))
            counts = {part: int((merged & part.value > 0).sum()) for part in Ignored}
            lines += [f"{split}: {count_noun(n, 'image')} {IGNORED_WORDS[part]}." for part, n in counts.items() if n]
        return lines
