"""Define what a source of images provides."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from imagenet_ddp.data.decoding.image import Picture, Pixels
from imagenet_ddp.data.sources import stl10


class Images(Protocol):
    """One split. Pickled into every loader worker: keep arrays, not lists of strings."""

    targets: np.ndarray  # int64 (N,), positions in Source.classes

    def __len__(self) -> int: ...

    def read(self, index: int) -> Tensor:
        """uint8 (3, H, W); raises decode.UnreadableImage."""
        ...

    def path(self, index: int) -> str:
        """What to call this image when speaking to people."""
        ...


@dataclass
class Source:
    """classes are what a checkpoint matches by (folder names); labels are what people read (the same unless known
    better)."""

    classes: list[str]
    train: Images | None
    val: Images | None
    labels: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # sentences for the start of the log
    digest: str = ""  # of the images' names and order, which each rank lists for itself

    def __post_init__(self) -> None:
        self.labels = self.labels or list(self.classes)


class ArrayImages:
    """Images that lie decoded in one array (STL-10)."""

    def __init__(self, images: "stl10.Stl10Images"):
        self._images = images
        self.targets = images.targets

    def __len__(self) -> int:
        return len(self.targets)

    def path(self, index: int) -> str:
        return self._images.name(index)

    def read(self, index: int) -> Tensor:
        return torch.from_numpy(self._images.read(index))

    def open(self, index: int) -> Picture:
        return Pixels(self._images.read(index).transpose(1, 2, 0))
