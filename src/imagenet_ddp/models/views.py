"""Average the logits of several orientations of an image."""

from collections.abc import Callable

from torch import Tensor


def oriented(images: Tensor, views: int) -> list[Tensor]:
    """Return that many orientations of square images, each (B, 3, H, W). 1: as they are. 2: also mirrored. 4: also
    upside down. 8: also turned by a quarter."""
    found = [images]
    if views > 1:
        found += [images.flip(3)]
    if views > 2:
        found += [each.flip(2) for each in found]
    if views > 4:
        found += [each.transpose(2, 3) for each in found]
    return found


def average_views(net: Callable[[Tensor], Tensor], images: Tensor, views: int) -> Tensor:
    """Return the mean of the logits over the orientations, (B, num_classes). Costs `views` forward passes."""
    if views == 1:
        return net(images)
    # divided before the next call, because a CUDA graph overwrites the result of the one before
    return sum((net(each) / views for each in oriented(images, views)[1:]), net(images) / views)
