"""From a decoded image to what the net sees: crop and resize on uint8 in the loader, normalise in float on the
device."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional


def train_transform(image_size: int, crop_scale: tuple[float, float], flip: float) -> v2.Compose:
    """uint8 (3, H, W) -> uint8 (3, image_size, image_size): random resized crop and horizontal flip, as for ImageNet.

    Draws from torch's default generator, which the data set seeds per image.
    """
    return v2.Compose(
        [
            v2.RandomResizedCrop(image_size, scale=crop_scale, antialias=True),
            v2.RandomHorizontalFlip(flip),
        ]
    )


@dataclass(frozen=True)
class EvalTransform:
    """uint8 (3, H, W) -> uint8 (3, image_size, image_size): resize the short side to `resize`, then crop the centre.

    Kept in every checkpoint (`as_dict`), so that evaluation and prediction see what validation saw.
    """

    image_size: int
    resize: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def from_keys(cls, data: dict) -> "EvalTransform":
        """data: the resolved data.* keys. A missing val_resize is the customary 256 for 224, in proportion."""
        size = int(data["image_size"])
        resize = data["val_resize"] or round(size * 256 / 224)
        return cls(size, int(resize), tuple(data["mean"]), tuple(data["std"]))

    def as_dict(self) -> dict:
        return {
            "image_size": self.image_size,
            "val_resize": self.resize,
            "mean": list(self.mean),
            "std": list(self.std),
        }

    def __call__(self, image: Tensor) -> Tensor:
        image = functional.resize(image, [self.resize], antialias=True)
        return functional.center_crop(image, [self.image_size, self.image_size])


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...], channels_last: bool) -> Tensor:
    """uint8 (B, 3, H, W) on any device -> float32 there, each channel (x / 255 - mean) / std."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=images.device).view(1, 3, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=images.device).view(1, 3, 1, 1)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return torch.addcmul(shift, images.to(torch.float32, memory_format=memory_format), scale)
