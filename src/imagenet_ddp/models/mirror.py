"""Average the logits of an image and its mirror image."""

from collections.abc import Callable

from torch import Tensor


def average_mirrored(net: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return the mean of the logits of each image and its mirror image, (B, num_classes). images: (B, 3, H, W). Costs
    two forward passes."""
    first = net(images) / 2  # divided now, because the second call of a CUDA graph overwrites the result of the first
    return first + net(images.flip(3)) / 2
