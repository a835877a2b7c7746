"""Classify an image and its mirror image."""

from collections.abc import Callable

from torch import Tensor


def average_mirrored(net: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return the mean of the two logits, (B, num_classes). images: (B, 3, H, W). Costs two forward passes."""
    first = net(images) / 2  # at once: the second call of a CUDA graph overwrites what the first returned
    return first + net(images.flip(3)) / 2
