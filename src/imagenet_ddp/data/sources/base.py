"""Define what a source of images provides: subclass `Images` for images of your own (`data._target_=my.Source`)."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from imagenet_ddp.data.decoding.image import DEFAULT, Picture, Pixels, Reading
from imagenet_ddp.errors import ConfigError


class Images:
    """One split of a data set: images by position.

    `targets` and `read` are required; every other method has a default, to be overridden where a source can do better.
    Pickled into each DataLoader worker: store arrays rather than lists of strings.
    """

    targets: np.ndarray  # int64 (N,): position of each image's class in Source.classes
    location: str = ""  # folder or address of the images, for messages
    is_encoded: bool = False  # `encoded` returns image files, which loader=dali can decode
    reading: Reading = DEFAULT  # how those files are decoded

    def __len__(self) -> int:
        return len(self.targets)

    def read(self, index: int) -> Tensor:
        """Return the decoded image: uint8 (3, H, W), RGB. Raises UnreadableImage or OSError."""
        return read_picture(self.open(index))

    def path(self, index: int) -> str:
        """Return the name of the image for messages and CSV files."""
        return f"image {index}"

    def open(self, index: int) -> Picture:
        """Return the image as a Picture, of which only the requested region is decoded. Raises like `read`."""
        return Pixels(self.read(index).permute(1, 2, 0).numpy())

    def encoded(self, index: int) -> bytes | None:
        """Return the stored bytes, as they are hashed and copied by `prepare`; None: there are none."""
        return None

    def verify(self, index: int) -> None:
        """Raise UnreadableImage where a stored checksum does not match."""

    def order(self, seed: int, epoch: int) -> np.ndarray | None:
        """Return the order of an epoch, int64 (N,), for storage where a random order is slow; None: any order."""
        return None


def read_picture(picture: Picture) -> Tensor:
    """Return the whole picture as a writeable uint8 tensor (3, H, W)."""
    pixels = picture.region(0, 0, picture.height, picture.width)
    return torch.from_numpy(pixels if pixels.flags.writeable else pixels.copy()).permute(2, 0, 1)


class _DuckTypedImages(Images):
    """Adapt a plain object with `targets`, `read` (or `open`) and any other method of Images."""

    def __init__(self, images: Any):
        if not hasattr(images, "read") and not hasattr(images, "open"):
            raise ConfigError(
                f"images of data._target_ must have a method read, got {type(images).__name__}. "
                "Hint: subclass imagenet_ddp.data.Images."
            )
        for name in ("targets", *(name for name in vars(Images) if not name.startswith("_"))):
            if hasattr(images, name):
                setattr(self, name, getattr(images, name))


def as_images(images: Any) -> Any:
    """Return an Images; an object of another class gets the defaults of the methods that it lacks. None stays None."""
    return images if images is None or isinstance(images, Images) else _DuckTypedImages(images)


@dataclass
class Source:
    """Classes and splits of a data set.

    classes: by which a checkpoint is matched (folder names); labels: what people read, the same unless known better.
    """

    classes: list[str]
    train: Images | None
    val: Images | None
    labels: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # sentences for the start of the log
    digest: str = ""  # of the images' names and order; equal on all ranks

    def __post_init__(self) -> None:
        self.labels = self.labels or list(self.classes)
        self.train, self.val = as_images(self.train), as_images(self.val)
