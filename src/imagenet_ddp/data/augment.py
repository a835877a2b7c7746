"""Augment single training images in the loader, in addition to crop and flip: policies, colours, blur and erasing.

All operations run on uint8 pixels at the output size. Policies, colours and blur use Pillow, which is faster at that
size than tensor operations. Each image draws its random numbers from the generator that is passed in. torchvision draws
from torch's global generator, and timm from those of Python and NumPy, whose states are therefore restored afterwards.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from torch import Tensor

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.decoding.decode import Picture
from imagenet_ddp.data.transforms import (
    EvalTransform,
    TrainTransform,
    Transform,
    filled,
    mean_and_std,
    mean_colour,
    resize_short_side,
    train_size,
)
from imagenet_ddp.system.seeding import seeded

BLUR_SIGMA = (0.1, 2.0)  # pixels; the range that SimCLR and DeiT use
SOLARIZE_FROM = 128  # 3-Augment inverts pixels at or above this level


def make_train_transform(data: DataConfig) -> Transform:
    bases: dict[str, Callable[[DataConfig], Transform]] = {"crop": TrainTransform, "pad_crop": PadCrop}
    base, augmentation = bases.get(data.augment, EvalTransform.of)(data), Augmentation(data)
    return AugmentedTransform(base, augmentation) if augmentation else base


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
class AugmentedTransform:
    """A crop followed by an augmentation. The flip can be left to the device, because no augmentation distinguishes
    left from right."""

    base: Transform
    augmentation: Augmentation

    def size(self, epoch: int) -> int:
        return self.base.size(epoch)

    def into(self, out: Tensor, picture: Picture, generator: random.Random) -> bool:
        flipped = self.base.into(out, picture, generator)
        self.augmentation.apply(out, generator)
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
