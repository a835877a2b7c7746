"""Mix the images of a training batch on the device: mixup (1710.09412) and CutMix (1905.04899), with soft targets."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from imagenet_ddp.data.loading.dataloader import Batch


class Draw(NamedTuple):
    """How one batch is mixed: image i with image i - shift."""

    share: float  # of image i, in pixels and target
    shift: int
    box: tuple[int, int, int, int] | None = None  # CutMix: top, bottom, left, right of the other image's part


@dataclass(frozen=True)
class Mixing:
    """Mixes each batch by one draw from the batch's seed, so no device is waited for and a resumed run draws the same.

    mixup_alpha, cutmix_alpha: parameter of the Beta distribution of the share; 0: off. With both, each batch uses one
    of the two with equal probability. probability: that a batch is mixed at all.
    """

    num_classes: int
    mixup_alpha: float
    cutmix_alpha: float
    probability: float = 1.0

    @classmethod
    def from_options(cls, data: Mapping[str, Any], num_classes: int) -> "Mixing | None":
        """Return the mixing of these data.* keys, resolved; None if nothing is mixed."""
        if not data["mixup_alpha"] and not data["cutmix_alpha"]:
            return None
        return cls(num_classes, data["mixup_alpha"], data["cutmix_alpha"], data["mix_probability"])

    def apply(self, batch: Batch) -> None:
        """Mix the images that count with each other, and add soft_target. target becomes the label with the greater
        share, which training top-1 counts; weight becomes the mean of both by their shares. image: float (B, 3, H,
        W)."""
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
        """Draw for one batch; None: the batch stays unchanged."""
        if num_images < 2 or generator.random() >= self.probability:
            return None
        takes_cutmix = bool(self.cutmix_alpha) and (not self.mixup_alpha or generator.random() < 0.5)
        alpha = self.cutmix_alpha if takes_cutmix else self.mixup_alpha
        share = generator.betavariate(alpha, alpha)
        shift = generator.randrange(1, num_images)
        if not takes_cutmix:
            return Draw(share, shift)
        # as torchvision's CutMix: a box of 1 - share of the area around any pixel, less where it leaves the image
        half = 0.5 * math.sqrt(1 - share)
        column, row = generator.randrange(width), generator.randrange(height)
        top, bottom = max(row - int(half * height), 0), min(row + int(half * height), height)
        left, right = max(column - int(half * width), 0), min(column + int(half * width), width)
        share = 1 - (bottom - top) * (right - left) / (height * width)
        return Draw(share, shift, (top, bottom, left, right))


def one_hot(target: Tensor, num_classes: int) -> Tensor:
    """Return float32 (B, num_classes). Unlike torch's own, it does not read the values, which would wait for the
    device."""
    return (target[:, None] == torch.arange(num_classes, device=target.device)).to(torch.float32)


def mix_images(images: Tensor, draw: Draw) -> Tensor:
    """Mix the images of a batch; shape and memory format stay the same."""
    if draw.box is None:
        return blended(images, draw.shift, draw.share)
    top, bottom, left, right = draw.box
    part = images[:, :, top:bottom, left:right]
    part.copy_(part.roll(draw.shift, 0))
    return images


def blended(values: Tensor, shift: int, share: float) -> Tensor:
    """Mix share of each row with the rest of the row `shift` before it, in two parts: roll() would copy everything and
    lose the memory format."""
    result = torch.empty_like(values)
    torch.lerp(values[:-shift], values[shift:], share, out=result[shift:])
    torch.lerp(values[-shift:], values[:shift], share, out=result[:shift])
    return result
