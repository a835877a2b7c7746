"""Augment single training images in the loader, in addition to crop and flip: policies, colours, blur and erasing.

All operations run on uint8 pixels at the output size. Policies, colours and blur use Pillow, which is faster at that
size than tensor operations. Each image draws its random numbers from the generator that is passed in. torchvision draws
from torch's global generator, and timm from those of Python and NumPy, whose states are therefore restored afterwards.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from torch import Tensor

from imagenet_ddp.data.decode import Picture
from imagenet_ddp.data.transforms import (
    EvalTransform,
    Sizes,
    TrainTransform,
    Transform,
    filled,
    mean_and_std,
    mean_colour,
    resize_short_side,
)

BLUR_SIGMA = (0.1, 2.0)  # pixels; the range that SimCLR and DeiT use
SOLARIZE_FROM = 128  # 3-Augment inverts pixels at or above this level


def make_train_transform(data: Mapping[str, Any]) -> Transform:
    """Make the training transform from resolved data.* keys."""
    base: Transform = EvalTransform.from_options(data)
    fill, interpolation = mean_colour(mean_and_std(data)[0]), data["interpolation"]
    if data["augment"] == "crop":
        low, high = data["crop_scale"]
        base = TrainTransform(Sizes.from_options(data), (low, high), data["flip"], interpolation)
    elif data["augment"] == "pad_crop":
        base = PadCrop(Sizes.from_options(data), data["pad"], data["flip"], fill, interpolation)
    noise = mean_and_std(data) if data["erasing_fill"] == "noise" else None
    given = {field.name: data[field.name] for field in fields(Augmentation) if field.name in data}
    augmentation = Augmentation(fill, noise=noise, **given)
    return AugmentedTransform(base, augmentation) if augmentation else base


@dataclass(frozen=True)
class PadCrop:
    """Random crop and horizontal flip, as is usual for CIFAR. The short side is resized to the output size, `pad`
    pixels of the colour `fill` are added on each side, and a square is cut out at a random position."""

    sizes: Sizes
    pad: int
    flip: float
    fill: tuple[int, ...]
    interpolation: str = "bilinear"

    def size(self, epoch: int) -> int:
        return self.sizes.at(epoch)

    def into(self, out: Tensor, picture: Picture, generator: random.Random) -> bool:
        flipped = generator.random() < self.flip
        size = out.shape[1]
        resized = resize_short_side(picture, size, self.interpolation)
        tall, wide = resized.shape[1:]
        top, left = (generator.randrange(side + 2 * self.pad - size + 1) - self.pad for side in (tall, wide))
        up, down, near, far = max(top, 0), min(top + size, tall), max(left, 0), min(left + size, wide)
        filled(out, self.fill)
        out[:, up - top : down - top, near - left : far - left] = resized[:, up:down, near:far]
        return flipped


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of a cropped image, applied in the order of the fields. bool() is False if it changes nothing.
    config.schema.data.DataConfig describes the other fields.

    fill: the level of each channel, 0 to 255, for areas without pixels. noise: (mean, std) of each channel, for pixels
    in 0..1, of the noise in an erased rectangle; None: the rectangle is filled with `fill`.
    """

    fill: tuple[int, ...]
    policy: str = "none"
    policy_ops: int | None = None
    policy_magnitude: int | None = None
    autoaugment: str = "imagenet"
    color_jitter: float = 0.0
    grayscale: float = 0.0
    blur: float = 0.0
    erasing: float = 0.0
    cutout: int = 0
    vflip: float = 0.0
    rot90: float = 0.0
    interpolation: str = "bilinear"  # of timm's policies
    noise: tuple[Sequence[float], Sequence[float]] | None = None

    def __bool__(self) -> bool:
        return self._of_pillow or max(self.erasing, self.cutout, self.vflip, self.rot90) > 0

    @property
    def _of_pillow(self) -> bool:
        return self.policy != "none" or max(self.color_jitter, self.grayscale, self.blur) > 0

    def apply(self, pixels: Tensor, generator: random.Random) -> None:
        """Augment the image in place. pixels: uint8 (3, H, W), channels last in memory."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(generator.getrandbits(32))
            if self._of_pillow:
                array = pixels.permute(1, 2, 0).numpy()
                array[...] = np.asarray(self._changed(Image.fromarray(array), generator))
            if self.erasing:
                self._erase(pixels)
        if self.cutout:
            self._cut_out(pixels, generator)
        if self.vflip and generator.random() < self.vflip:
            pixels.copy_(pixels.flip(1))
        if self.rot90 and generator.random() < self.rot90:
            pixels.copy_(pixels.rot90(generator.randrange(4), (1, 2)))

    def _changed(self, image: Image.Image, generator: random.Random) -> Image.Image:
        if self.policy == "three_augment":
            image = three_augment(image, generator)
        elif self.policy.startswith("rand-"):
            image = self._timm(image, generator)
        elif self.policy != "none":
            image = self._torchvision_policy(image)
        if self.color_jitter:
            image = self._jitter(image)
        if self.grayscale and generator.random() < self.grayscale:
            image = to_grey(image)
        if self.blur and generator.random() < self.blur:
            image = blurred(image, generator)
        return image

    def _timm(self, image: Image.Image, generator: random.Random) -> Image.Image:
        states = random.getstate(), np.random.get_state()
        try:
            random.seed(generator.getrandbits(64))
            np.random.seed(generator.getrandbits(32))
            return self._timm_policy(image)
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])

    def _cut_out(self, pixels: Tensor, generator: random.Random) -> None:
        """Erase a square centred on a random pixel. Near an edge, part of the square may be outside the image, as in
        the paper (arXiv:1708.04552)."""
        top, left = (generator.randrange(side) - self.cutout // 2 for side in pixels.shape[1:])
        square = pixels[:, max(top, 0) : max(top + self.cutout, 0), max(left, 0) : max(left + self.cutout, 0)]
        filled(square, self.fill)

    # Importing torchvision takes a second, so only the methods that need it import it.

    @cached_property
    def _torchvision_policy(self) -> Callable[[Image.Image], Image.Image]:
        from torchvision.transforms import v2

        # torchvision's training script uses bilinear interpolation, but these classes default to nearest-neighbour
        options: Any = {"interpolation": v2.InterpolationMode.BILINEAR, "fill": list(self.fill)}
        magnitude = self.policy_magnitude  # None: torchvision's default, as for policy_ops
        match self.policy:
            case "randaugment":
                return v2.RandAugment(self.policy_ops or 2, 9 if magnitude is None else magnitude, **options)
            case "augmix":
                return v2.AugMix(magnitude or 3, self.policy_ops or 3, **options)
            case "autoaugment":
                return v2.AutoAugment(v2.AutoAugmentPolicy(self.autoaugment), **options)
            case "trivialaugment":
                return v2.TrivialAugmentWide(**options)
        raise AssertionError(self.policy)

    @cached_property
    def _timm_policy(self) -> Callable[[Image.Image], Image.Image]:
        from timm.data.auto_augment import rand_augment_transform

        kind = Image.Resampling.BICUBIC if self.interpolation == "bicubic" else Image.Resampling.BILINEAR
        return rand_augment_transform(self.policy, {"img_mean": self.fill, "interpolation": kind})

    @cached_property
    def _jitter(self) -> Callable[[Image.Image], Image.Image]:
        from torchvision.transforms import v2

        return v2.ColorJitter(self.color_jitter, self.color_jitter, self.color_jitter)

    @cached_property
    def _erase(self) -> Callable[[Tensor], Tensor]:
        from torchvision.transforms import v2

        class ErasingWithNoise(v2.RandomErasing):
            def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
                params = super().make_params(flat_inputs)
                if params["v"] is not None:  # normal noise; None: no rectangle fitted
                    params["v"] = (params["v"] * std + mean).round_().clamp_(0, 255)
                return params

        if self.noise is None:
            value: Any = [float(level) for level in self.fill]
            return v2.RandomErasing(self.erasing, value=value, inplace=True)
        mean, std = (255 * torch.tensor(levels).view(3, 1, 1) for levels in self.noise)
        value = "random"  # standard normal
        return ErasingWithNoise(self.erasing, value=value, inplace=True)


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
