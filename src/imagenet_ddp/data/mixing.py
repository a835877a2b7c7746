"""Mix the images of a training batch on the device, with soft targets: mixup (arXiv:1710.09412) and CutMix
(arXiv:1905.04899)."""

import math
import random
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.loader import Batch


class Draw(NamedTuple):
    """Parameters for mixing one batch: image i is mixed with image i - shift."""

    share: float  # share of image i in the pixels and the target
    shift: int
    box: tuple[int, int, int, int] | None = None  # CutMix: top, bottom, left, right of the part from the other image


@dataclass(frozen=True)
class Mixing:
    """Mixes each batch with parameters that are drawn from the batch's seed. Therefore mixing does not wait for the
    device, and a resumed run draws the same parameters. If data.mixup_alpha and data.cutmix_alpha are both set, each
    batch uses one of the two methods with equal probability."""

    data: DataConfig
    num_classes: int

    def apply(self, batch: Batch) -> None:
        """Mix the images that count with each other, and add soft_target to the batch. target becomes the label with
        the larger share, from which training top-1 is computed. weight becomes the mean of both weights, weighted by
        the shares. batch["image"]: float (B, 3, H, W)."""
        count = batch["num_counted"]
        images, target = batch["image"][:count], batch["target"]
        batch["soft_target"] = soft_target = one_hot(target, self.num_classes)
        draw = self.draw(random.Random(batch["seed"]), count, *images.shape[2:])
        if draw is None:
            return
        mixed, soft = mix_images(images, draw), blended(soft_target[:count], draw.shift, draw.share)
        greater = target[:count].roll(draw.shift) if draw.share < 0.5 else target[:count]
        parts = (mixed, batch["image"][count:]), (soft, soft_target[count:]), (greater, target[count:])
        whole = [first if count == len(target) else torch.cat([first, rest]) for first, rest in parts]
        batch["image"], batch["soft_target"], batch["target"] = whole
        if (weight := batch.get("weight")) is not None:
            batch["weight"] = torch.cat([blended(weight[:count], draw.shift, draw.share), weight[count:]])

    def draw(self, generator: random.Random, num_images: int, height: int, width: int) -> Draw | None:
        """Draw the parameters for mixing one batch. Return None if the batch stays unchanged."""
        mixup, cutmix = self.data.mixup_alpha, self.data.cutmix_alpha
        if num_images < 2 or generator.random() >= self.data.mix_probability:
            return None
        takes_cutmix = bool(cutmix) and (not mixup or generator.random() < 0.5)
        alpha = cutmix if takes_cutmix else mixup
        share = generator.betavariate(alpha, alpha)
        shift = generator.randrange(1, num_images)
        if not takes_cutmix:
            return Draw(share, shift)
        # as in torchvision's CutMix: a box with 1 - share of the area around any pixel, cut off at the image's edges
        half = 0.5 * math.sqrt(1 - share)
        column, row = generator.randrange(width), generator.randrange(height)
        top, bottom = max(row - int(half * height), 0), min(row + int(half * height), height)
        left, right = max(column - int(half * width), 0), min(column + int(half * width), width)
        share = 1 - (bottom - top) * (right - left) / (height * width)
        return Draw(share, shift, (top, bottom, left, right))


def one_hot(target: Tensor, num_classes: int) -> Tensor:
    """Return the one-hot targets, float32 (B, num_classes). Unlike torch's function, this one does not read the values,
    which would wait for the device."""
    return (target[:, None] == torch.arange(num_classes, device=target.device)).to(torch.float32)


def mix_images(images: Tensor, draw: Draw) -> Tensor:
    """Mix the images of a batch. Shape and memory format stay the same. CutMix changes `images` in place."""
    if draw.box is None:
        return blended(images, draw.shift, draw.share)
    top, bottom, left, right = draw.box
    part = images[:, :, top:bottom, left:right]
    part.copy_(part.roll(draw.shift, 0))
    return images


def blended(values: Tensor, shift: int, share: float) -> Tensor:
    """Return share × row i + (1 - share) × row (i - shift) for each row i. The result is computed in two parts, because
    roll() would copy everything and lose the memory format."""
    result = torch.empty_like(values)
    torch.lerp(values[:-shift], values[shift:], share, out=result[shift:])
    torch.lerp(values[-shift:], values[:shift], share, out=result[:shift])
    return result
