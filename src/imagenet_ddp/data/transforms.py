"""Turn a picture into the input of the model. The loader makes a uint8 crop of the output size, which is flipped,
normalised and converted to float on the device."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from imagenet_ddp.config.schema.data import IMAGENET_MEAN, IMAGENET_STD, MOST_PIXELS, DataConfig
from imagenet_ddp.config.section import to_config, to_plain
from imagenet_ddp.data.check_data import validate_statistics
from imagenet_ddp.data.decoding.decode import Picture, Pixels
from imagenet_ddp.errors import ConfigError

_TRIES = 10  # attempts to draw a crop that fits, as in torchvision's RandomResizedCrop
_ASPECT = (3 / 4, 4 / 3)  # smallest and largest ratio of width to height of a crop, as in RandomResizedCrop
# Longest side of an image that is resized, in short sides; the rest is cut off. A row of 20,000,000 pixels would
# otherwise become 256 × 5,120,000,000 pixels.
LONGEST = 16
SIZE_STEP = 32  # pixels by which progressive sizes grow, because a ResNet halves the size five times


class Box(NamedTuple):
    """A rectangle in a picture, in pixels."""

    top: int
    left: int
    height: int
    width: int


class Transform(Protocol):
    def size(self, epoch: int) -> int:
        """Return height and width of the output, in pixels."""
        ...

    def into(self, out: Tensor, picture: Picture, generator: random.Random) -> bool:
        """Fill `out`, uint8 (3, size, size). Return whether the image is to be flipped later, on the device."""
        ...


def resize_into(out: Tensor, pixels: np.ndarray, interpolation: str = "bilinear") -> None:
    """Resize pixels into `out` with antialiasing, as Pillow does. interpolation: bilinear or bicubic. pixels: uint8 (H,
    W, 3). out: uint8 (3, h, w), channels last in memory, so that the kernel reads and writes whole pixels, which takes
    half the time."""
    if not pixels.flags.c_contiguous or not pixels.flags.writeable:  # torch warns about a read-only array
        pixels = pixels.copy()
    image = torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)
    if image.shape[2:] == out.shape[1:]:
        out.copy_(image[0])
        return
    aten = torch.ops.aten
    kernel = aten._upsample_bicubic2d_aa if interpolation == "bicubic" else aten._upsample_bilinear2d_aa
    kernel.out(image, list(out.shape[1:]), False, None, out=out.unsqueeze(0))


def resize_short_side(picture: Picture, side: int, interpolation: str) -> Tensor:
    """Return the picture as uint8 (3, h, w) with a short side of `side` pixels. The long side is rounded down, as in
    torchvision's Resize. Of an image longer than LONGEST short sides, only the centre is used."""
    box, short = centre_box(picture.height, picture.width), min(picture.height, picture.width)
    resized = empty(int(side * box.height / short), int(side * box.width / short), 3)
    resize_into(resized, picture.region(*box), interpolation)
    return resized


def centre_box(height: int, width: int) -> Box:
    """Return the part of an image that is resized: the whole, or the centre of one longer than LONGEST short sides."""
    most = LONGEST * min(height, width)
    tall, wide = min(height, most), min(width, most)
    return Box((height - tall) // 2, (width - wide) // 2, tall, wide)


@cache
def mean_colour(mean: tuple[float, ...]) -> tuple[int, ...]:
    """Return the level of each channel, 0 to 255, that normalisation maps closest to 0. mean: one value per channel,
    for pixels in 0..1."""
    return tuple(round(255 * min(max(value, 0.0), 1.0)) for value in mean)


def filled(out: Tensor, colour: Sequence[int]) -> Tensor:
    """Fill `out`, uint8 (3, h, w), with a colour, in place."""
    return out.copy_(torch.tensor(colour, dtype=torch.uint8).view(3, 1, 1))


def whole(image: Tensor) -> Tensor:
    """Prepare an image, uint8 (3, H, W), for a model that resizes it itself."""
    top, left, tall, wide = centre_box(*image.shape[1:])
    return image[:, top : top + tall, left : left + wide].contiguous()


def empty(*shape: int) -> Tensor:
    """Allocate uint8 (..., height, width, 3) in memory, and return it as a view (..., 3, height, width)."""
    return torch.empty(shape, dtype=torch.uint8).movedim(-1, -3)


def last_train_size(data: DataConfig) -> int:
    """Return height and width of the training images in the last epoch, in pixels."""
    return data.train_size or data.image_size


def train_size(data: DataConfig, epoch: int) -> int:
    """Return height and width of the training images in an epoch, in pixels. With data.progressive_start, they grow
    between two epochs, in multiples of 32 pixels, as in FFCV's ImageNet script."""
    (begin, end), start, last = data.progressive_epochs or (0, 0), data.progressive_start, last_train_size(data)
    if start is None or epoch >= end:
        return last
    if epoch <= begin:
        return start
    share = (epoch - begin) / (end - begin)
    return min(max(round((start + share * (last - start)) / SIZE_STEP) * SIZE_STEP, start), last)


@dataclass(frozen=True)
class TrainTransform:
    """Random resized crop and horizontal flip, as is usual for ImageNet. The crop has a share of the image's area
    within data.crop_scale and an aspect ratio between 3:4 and 4:3. If none of ten draws fits, the centre is used."""

    data: DataConfig

    def size(self, epoch: int) -> int:
        return train_size(self.data, epoch)

    def into(self, out: Tensor, picture: Picture, generator: random.Random) -> bool:
        flipped = generator.random() < self.data.flip
        box = self.box(picture.height, picture.width, generator)
        resize_into(out, picture.region(*box, size=out.shape[1]), self.data.interpolation)
        return flipped

    def box(self, height: int, width: int, generator: random.Random) -> Box:
        draw, area, (least, most) = generator.random, height * width, self.data.crop_scale
        low, high = math.log(_ASPECT[0]), math.log(_ASPECT[1])
        for _ in range(_TRIES):
            target = area * (least + (most - least) * draw())
            aspect = math.exp(low + (high - low) * draw())
            wide, tall = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
            if 0 < wide <= width and 0 < tall <= height:
                return Box(int(draw() * (height - tall + 1)), int(draw() * (width - wide + 1)), tall, wide)
        wide = min(width, max(round(height * _ASPECT[1]), 1))
        tall = min(height, max(round(width / _ASPECT[0]), 1))
        return Box((height - tall) // 2, (width - wide) // 2, tall, wide)


@dataclass(frozen=True)
class EvalTransform:
    """Makes a square of an image: uint8 (3, H, W) -> uint8 (3, image_size, image_size).

    The fields are keys of data.*, with a value in place of each null. fit: crop (resize the short side to val_resize
    pixels, then crop the centre), pad (resize the long side to image_size, then add the mean colour on both sides) or
    squash (resize both sides).

    The transform is stored in every checkpoint (`as_dict`), so that evaluation and prediction use the same transform as
    validation.
    """

    image_size: int
    val_resize: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    fit: str
    vflip: float
    rot90: float
    val_mirror: bool

    def __post_init__(self) -> None:
        """Raise ConfigError for values that were stored or passed by a caller, which no command has validated."""
        if mistakes := validate_statistics(self.mean, self.std):
            raise ConfigError(mistakes)
        if self.image_size > MOST_PIXELS or self.val_resize > 2 * MOST_PIXELS:
            sizes = f"image_size={self.image_size} val_resize={self.val_resize}"
            raise ConfigError(
                f"image_size must be at most {MOST_PIXELS} and val_resize twice that, got {sizes}. "
                "Hint: use another file, or smaller sizes."
            )

    @classmethod
    def of(cls, data: DataConfig) -> "EvalTransform":
        """If val_resize is null, the short side is resized to 256/224 of the image size, as is usual."""
        resize, orientations = data.val_resize or round(data.image_size * 256 / 224), (data.vflip, data.rot90)
        mean, std = mean_and_std(data)
        return cls(data.image_size, resize, mean, std, data.interpolation, data.fit, *orientations, data.val_mirror)

    @classmethod
    def of_stored(cls, values: Mapping[str, Any]) -> "EvalTransform":
        """values: as_dict of this or an earlier version, in which fit, vflip and rot90 may be missing."""
        return cls.of(to_config(values, DataConfig))

    @property
    def views(self) -> int:
        """Return how many orientations of an image have their logits averaged (models/layers.py): those that the
        training shows with equal right."""
        return 1 if not self.val_mirror else 8 if self.rot90 else 4 if self.vflip else 2

    def as_dict(self) -> dict[str, Any]:
        return to_plain(asdict(self))

    def size(self, epoch: int) -> int:
        return self.image_size

    def into(self, out: Tensor, picture: Picture, generator: random.Random | None = None) -> bool:
        if self.fit != "crop":
            box = centre_box(picture.height, picture.width)
            # pad keeps the ratio of the sides; at least 2 pixels, because torch.export treats a size of 1 on its own
            longest = max(box.height, box.width) if self.fit == "pad" else 0
            tall, wide = (max(self.image_size * side // (longest or side), 2) for side in (box.height, box.width))
            resized = empty(tall, wide, 3)
            resize_into(resized, picture.region(*box), self.interpolation)
            top, left = (self.image_size - tall) // 2, (self.image_size - wide) // 2
            filled(out, mean_colour(self.mean))[:, top : top + tall, left : left + wide] = resized
            return False
        resized = resize_short_side(picture, self.val_resize, self.interpolation)
        tall, wide = resized.shape[1:]
        # as in torchvision's CenterCrop
        top, left = round((tall - self.image_size) / 2), round((wide - self.image_size) / 2)
        out.copy_(resized[:, top : top + self.image_size, left : left + self.image_size])
        return False

    def __call__(self, image: Tensor) -> Tensor:
        out = empty(self.image_size, self.image_size, 3)
        self.into(out, Pixels(image.permute(1, 2, 0).numpy()))
        return out


def mean_and_std(data: DataConfig) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and std of each channel. null selects ImageNet's values."""
    return tuple(data.mean or IMAGENET_MEAN), tuple(data.std or IMAGENET_STD)


def normalise(
    images: Tensor, mean: tuple[float, ...], std: tuple[float, ...], channels_last: bool, flip: Tensor | None = None
) -> Tensor:
    """Normalise uint8 (B, 3, H, W) to float32 on the same device: (x / 255 - mean) / std per channel. flip: bool (B,),
    whether each image is to be flipped horizontally."""
    if flip is not None:
        # flips uint8, a quarter of the bytes of float32, and does not read `flip`, which would wait for the device
        images = torch.where(flip.view(-1, 1, 1, 1), images.flip(3), images)
    scale, shift = _scale_and_shift(mean, std, images.device)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    if images.is_cuda:  # one kernel, which writes in the memory order of its input
        return torch.addcmul(shift, images.contiguous(memory_format=memory_format), scale)
    floats = images.to(torch.float32, memory_format=memory_format)
    return torch.addcmul(shift, floats, scale, out=floats)  # in place, which takes a third less time on a CPU


@cache
def _scale_and_shift(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return scale and shift, both float32 (1, 3, 1, 1). They are copied to the device only once, because each copy
    waits for all queued work."""
    with torch.inference_mode(False):  # the first batch may be for validation, and later ones for training
        scale = torch.tensor([1 / (255 * s) for s in std], device=device)
        shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)
        return scale.view(1, 3, 1, 1), shift.view(1, 3, 1, 1)
