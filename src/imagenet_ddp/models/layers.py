"""Layers and wrappers that change how a net computes: blurred convolutions, fewer classes, and the average over
orientations of an image."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIN_CHANNELS = 16  # as in FFCV's ImageNet recipes, which leave the first convolution (3 channels) unchanged


class BlurConv2d(nn.Conv2d):
    """A strided convolution preceded by a 3 × 3 binomial blur, which makes a net less sensitive to small shifts of the
    image (Zhang 2019, arXiv:1904.11486). Its parameters have nn.Conv2d's names, so weights trained without the blur can
    be loaded."""

    blur: Tensor

    @classmethod
    def of(cls, conv: nn.Conv2d) -> "BlurConv2d":
        """Return a blurred convolution that shares the parameters of `conv`."""
        shape = (conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation)
        with torch.device("meta"):  # no random numbers are drawn for weights that are replaced
            made = cls(*shape, groups=conv.groups, bias=conv.bias is not None, padding_mode=conv.padding_mode)  # type: ignore[arg-type]
        made.weight, made.bias = conv.weight, conv.bias
        row = torch.tensor([1.0, 2.0, 1.0])
        blur = torch.outer(row, row) / 16
        made.register_buffer("blur", blur.repeat(conv.in_channels, 1, 1, 1).to(conv.weight), persistent=False)
        return made

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(F.conv2d(input, self.blur, padding=1, groups=self.in_channels))


def add_blur_pool(net: nn.Module) -> int:
    """Replace each strided convolution with at least 16 input channels by a BlurConv2d. Return the number of replaced
    convolutions."""
    count = 0
    for module in list(net.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Conv2d and max(child.stride) > 1 and child.in_channels >= MIN_CHANNELS:
                setattr(module, name, BlurConv2d.of(child))
                count += 1
    return count


class ClassSubset(nn.Module):
    """A wrapper that sets the logits of a net to -inf, except those of the classes at `positions`."""

    def __init__(self, net: nn.Module, positions: Sequence[int], num_classes: int):
        super().__init__()
        self.net = net
        self.excluded: Tensor
        excluded = torch.ones(num_classes, dtype=torch.bool)
        excluded[list(positions)] = False
        self.register_buffer("excluded", excluded, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images).masked_fill(self.excluded, float("-inf"))


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
    """Return the mean of the logits over the orientations, (B, num_classes). Costs `views` forward passes, the last of
    which is that of the images as they are: a CUDA graph overwrites what a hook has kept of those before."""
    if views == 1:
        return net(images)
    # divided before the next call, because a CUDA graph overwrites the result of the one before
    first, *others = reversed(oriented(images, views))
    return sum((net(each) / views for each in others), net(first) / views)
