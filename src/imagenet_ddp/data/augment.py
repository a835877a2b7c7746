"""Augment single training images in the loader, in addition to crop and flip: policies, colours, blur and erasing.

All operations run on uint8 pixels at the output size, a transform of the user's own first. Policies, colours and blur
use Pillow, which is faster at that size than tensor operations. Each image draws its random numbers from the generator
that is passed in. torchvision draws from torch's global generator, and timm from those of Python and NumPy, whose
states are therefore restored afterwards.
"""

import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from torch import Tensor

from imagenet_ddp.config.schema.data import DataConfig, TransformConfig
from imagenet_ddp.config.section import make
from imagenet_ddp.data.decoding.decode import Picture
from imagenet_ddp.data.decoding.errors import LoadError
from imagenet_ddp.data.transforms import (
    EvalTransform,
    TrainTransform,
    Transform,
    empty,
    filled,
    mean_and_std,
    mean_colour,
    resize_short_side,
    train_size,
)
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.system.seeding import seeded
from imagenet_ddp.system.text import first_line

BLUR_SIGMA = (0.1, 2.0)  # pixels; the range that SimCLR and DeiT use
SOLARIZE_FROM = 128  # 3-Augment inverts pixels at or above this level


def make_train_transform(data: DataConfig, own: "OwnTransform | None" = None) -> Transform:
    bases: dict[str, Callable[[DataConfig], Transform]] = {"crop": TrainTransform, "pad_crop": PadCrop}
    base = bases.get(data.augment, EvalTransform.of)(data)
    applied = [each for each in (own, Augmentation(data)) if each]
    return AugmentedTransform(base, applied) if applied else base


def fill_colour(data: DataConfig) -> tuple[int, ...]:
    """Return the level of each channel, 0 to 255, for areas without pixels."""
    return mean_colour(mean_and_std(data)[0])


@dataclass(frozen=True)
class PadCrop:
    """Random crop and horizontal flip, as is usual for CIFAR. The short side is resized to the output size, data.pad
    pixels of the mean colour are added on each side, and a square is cut out at a random position."""

    data: DataConfig

    def size(self, epoch: int) -> int:
        return train_size(self.data, epoch)

    def into(self, out: Tensor, picture: Picture, generator: random.Random) -> bool:
        flipped = generator.random() < self.data.flip
        size, pad = out.shape[1], self.data.pad
        resized = resize_short_side(picture, size, self.data.interpolation)
        tall, wide = resized.shape[1:]
        top, left = (generator.randrange(side + 2 * pad - size + 1) - pad for side in (tall, wide))
        up, down, near, far = max(top, 0), min(top + size, tall), max(left, 0), min(left + size, wide)
        filled(out, fill_colour(self.data))
        out[:, up - top : down - top, near - left : far - left] = resized[:, up:down, near:far]
        return flipped


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of a cropped image, as data.policy and the keys after it say. bool() is False if it changes
    nothing."""

    data: DataConfig

    def __bool__(self) -> bool:
        return self._of_pillow or max(self.data.erasing, self.data.cutout, self.data.vflip, self.data.rot90) > 0

    @property
    def _of_pillow(self) -> bool:
        return self.data.policy != "none" or max(self.data.color_jitter, self.data.grayscale, self.data.blur) > 0

    def apply(self, pixels: Tensor, generator: random.Random) -> None:
        """Augment the image in place. pixels: uint8 (3, H, W), channels last in memory."""
        data = self.data
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(generator.getrandbits(32))
            if self._of_pillow:
                array = pixels.permute(1, 2, 0).numpy()
                array[...] = np.asarray(self._changed(Image.fromarray(array), generator))
            if data.erasing:
                self._erase(pixels)
        if data.cutout:
            self._cut_out(pixels, generator)
        if data.vflip and generator.random() < data.vflip:
            pixels.copy_(pixels.flip(1))
        if data.rot90 and generator.random() < data.rot90:
            pixels.copy_(pixels.rot90(generator.randrange(4), (1, 2)))

    def _changed(self, image: Image.Image, generator: random.Random) -> Image.Image:
        data = self.data
        if data.policy == "three_augment":
            image = three_augment(image, generator)
        elif data.policy.startswith("rand-"):
            image = self._timm(image, generator)
        elif data.policy != "none":
            image = self._torchvision_policy(image)
        if data.color_jitter:
            image = self._jitter(image)
        if data.grayscale and generator.random() < data.grayscale:
            image = to_grey(image)
        if data.blur and generator.random() < data.blur:
            image = blurred(image, generator)
        return image

    def _timm(self, image: Image.Image, generator: random.Random) -> Image.Image:
        with seeded(generator.getrandbits(63)):
            return self._timm_policy(image)

    def _cut_out(self, pixels: Tensor, generator: random.Random) -> None:
        """Erase a square centred on a random pixel. Near an edge, part of the square may be outside the image, as in
        the paper (arXiv:1708.04552)."""
        side = self.data.cutout
        top, left = (generator.randrange(most) - side // 2 for most in pixels.shape[1:])
        filled(pixels[:, max(top, 0) : max(top + side, 0), max(left, 0) : max(left + side, 0)], fill_colour(self.data))

    # Importing torchvision takes a second, so only the methods that need it import it.

    @cached_property
    def _torchvision_policy(self) -> Callable[[Image.Image], Image.Image]:
        from torchvision.transforms import v2

        # torchvision's training script uses bilinear interpolation, but these classes default to nearest-neighbour
        options: Any = {"interpolation": v2.InterpolationMode.BILINEAR, "fill": list(fill_colour(self.data))}
        number, magnitude = self.data.policy_ops, self.data.policy_magnitude  # None: torchvision's default
        match self.data.policy:
            case "randaugment":
                return v2.RandAugment(number or 2, 9 if magnitude is None else magnitude, **options)
            case "augmix":
                return v2.AugMix(3 if magnitude is None else magnitude, number or 3, **options)
            case "autoaugment":
                return v2.AutoAugment(v2.AutoAugmentPolicy(self.data.autoaugment), **options)
            case "trivialaugment":
                return v2.TrivialAugmentWide(**options)
        raise AssertionError(self.data.policy)

    @cached_property
    def _timm_policy(self) -> Callable[[Image.Image], Image.Image]:
        from timm.data.auto_augment import rand_augment_transform

        kind = Image.Resampling.BICUBIC if self.data.interpolation == "bicubic" else Image.Resampling.BILINEAR
        return rand_augment_transform(self.data.policy, {"img_mean": fill_colour(self.data), "interpolation": kind})

    @cached_property
    def _jitter(self) -> Callable[[Image.Image], Image.Image]:
        from torchvision.transforms import v2

        return v2.ColorJitter(*[self.data.color_jitter] * 3)

    @cached_property
    def _erase(self) -> Callable[[Tensor], Tensor]:
        from torchvision.transforms import v2

        class ErasingWithNoise(v2.RandomErasing):
            def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
                params = super().make_params(flat_inputs)
                if params["v"] is not None:  # normal noise; None: no rectangle fitted
                    params["v"] = (params["v"] * std + mean).round_().clamp_(0, 255)
                return params

        if self.data.erasing_fill == "mean":
            value: Any = [float(level) for level in fill_colour(self.data)]
            return v2.RandomErasing(self.data.erasing, value=value, inplace=True)
        mean, std = (255 * torch.tensor(levels).view(3, 1, 1) for levels in mean_and_std(self.data))
        value = "random"  # standard normal
        return ErasingWithNoise(self.data.erasing, value=value, inplace=True)


@dataclass(frozen=True)
class OwnTransform:
    """A transform of the user's own: a function of an RGB image of Pillow, which returns a changed one, or its pixels.
    It may draw from the generators of Python, NumPy and torch.

    name: of the function, for messages. again: makes it anew in a loader process, if it cannot be sent there,
    as an inner function, a lambda, or what holds a lock or an open file.
    """

    function: Callable[[Image.Image], Any]
    name: str
    again: Callable[[], Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            pickle.dumps(self.function)
        except (pickle.PicklingError, AttributeError, TypeError):
            if self.again is not None:
                return _made_again, (self.again, self.name)
        return OwnTransform, (self.function, self.name, self.again)

    def apply(self, pixels: Tensor, generator: random.Random) -> None:
        """Change the image in place. pixels: uint8 (3, H, W), channels last in memory. Raises LoadError if the function
        returns something else than an RGB image of this size, as an image of Pillow, uint8 (H, W, 3) of NumPy or uint8
        (3, H, W) of torch."""
        array = pixels.permute(1, 2, 0).numpy()
        with seeded(generator.getrandbits(63)):
            made = self.function(Image.fromarray(array))
        changed = made.permute(1, 2, 0).numpy() if torch.is_tensor(made) and made.ndim == 3 else np.asarray(made)
        if (changed.dtype, changed.shape) != (array.dtype, array.shape):
            raise LoadError(
                f"{self.name} must return an RGB image of the size that it gets, {array.shape[1]} × {array.shape[0]} "
                f"pixels of uint8, got {type(made).__name__} {changed.dtype} {changed.shape}. Hint: leave out what "
                "resizes, converts to float or normalises; the program does so."
            )
        array[...] = changed


def _made_again(again: Callable[[], Any], name: str) -> OwnTransform:
    return OwnTransform(again(), name, again)


def make_own_transform(config: TransformConfig, image_size: int) -> OwnTransform | None:
    """Return the transform that transform._target_ names, None if it names none. Raises ConfigError if it cannot be
    made, or fails for a grey image."""
    if config.target is None:
        return None
    key = f"transform._target_={config.target}"
    again = partial(make, "transform._target_", config.target, config.args)
    own = OwnTransform(again(), key, again)
    try:
        own.apply(empty(image_size, image_size, 3).fill_(128), random.Random(0))
    except LoadError as error:
        raise ConfigError(str(error)) from error
    except Exception as error:
        what = f"{key} must accept an RGB image of Pillow, but the call failed: {first_line(error)}"
        hint = "name a class whose objects are called with an image, or a function that returns such a function"
        raise ConfigError(Mistake(what, ("transform._target_",), hint=hint)) from error
    return own


@dataclass(frozen=True)
class AugmentedTransform:
    """A crop followed by augmentations. The flip is left to the device: no augmentation of this program distinguishes
    left from right, and one of the user's own gets the image before it is flipped."""

    base: Transform
    augmentations: Sequence[OwnTransform | Augmentation]

    def size(self, epoch: int) -> int:
        return self.base.size(epoch)

    def into(self, out: Tensor, picture: Picture, generator: random.Random) -> bool:
        flipped = self.base.into(out, picture, generator)
        for each in self.augmentations:
            each.apply(out, generator)
        return flipped


def three_augment(image: Image.Image, generator: random.Random) -> Image.Image:
    """Convert the image to grey, solarise it or blur it, chosen at random (DeiT III, arXiv:2204.07118)."""
    number = generator.randrange(3)
    if number == 0:
        return to_grey(image)
    return ImageOps.solarize(image, SOLARIZE_FROM) if number == 1 else blurred(image, generator)


def to_grey(image: Image.Image) -> Image.Image:
    return image.convert("L").convert("RGB")


def blurred(image: Image.Image, generator: random.Random) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(generator.uniform(*BLUR_SIGMA)))
