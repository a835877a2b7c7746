"""Layers and wrappers that change how a net computes: blurred convolutions, recomputed blocks, fewer classes, and the
average over orientations of an image."""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

MIN_CHANNELS = 16  # as in FFCV's ImageNet recipes, which leave the first convolution (3 channels) unchanged

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def repeated_blocks(net: nn.Module) -> list[nn.Module]:
    """Return the outermost modules that have submodules and whose class occurs more than once, such as the residual
    blocks of a ResNet or the layers of a transformer. Returns [] if the net has none."""
    counts = Counter(
        type(module) for module in net.modules() if type(module) not in CONTAINERS and next(module.children(), None)
    )

    def outermost(parent: nn.Module) -> Iterator[nn.Module]:
        for child in parent.children():
            if counts[type(child)] > 1:
                yield child
            else:
                yield from outermost(child)

    return list(outermost(net))


def checkpoint_activations(net: nn.Module) -> bool:
    """Make each repeated block keep only its input in training, and recompute its activations in the backward pass.
    Parameter names, outputs and gradients do not change. Returns False if the net has no repeated blocks."""
    blocks = repeated_blocks(net)
    for block in blocks:
        # replaces the class, not a method of the instance, because copies of the net keep the class
        block.__class__ = _checkpointed(type(block))
    return bool(blocks)


@functools.cache
def _checkpointed(kind: type[nn.Module]) -> type[nn.Module]:
    """Return the checkpointing subclass of a block's class. All blocks of one class share it, so repeated_blocks still
    finds them."""
    return type(kind.__name__, (_Checkpointed, kind), {"__module__": kind.__module__})


class _Checkpointed(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(*args, **kwargs)
        # the compiler recomputes only what the gradients need, which excludes buffer updates
        contexts = {} if torch.compiler.is_compiling() else {"context_fn": self._contexts}
        return checkpoint(super().forward, *args, use_reentrant=False, **contexts, **kwargs)

    def _contexts(self) -> tuple[Any, Any]:
        return contextlib.nullcontext(), _with_copied_buffers(self)


@contextlib.contextmanager
def _with_copied_buffers(block: nn.Module) -> Generator[None]:
    """Replace the buffers by copies while the forward pass is recomputed, so that the running statistics of batch norm
    count each batch once."""
    own = [(module, name, buffer) for module in block.modules() for name, buffer in module.named_buffers(recurse=False)]
    for module, name, buffer in own:
        setattr(module, name, buffer.clone())
    try:
        yield
    finally:
        for module, name, buffer in own:
            setattr(module, name, buffer)


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
    """Return the mean of the logits over the orientations, (B, num_classes). Costs `views` forward passes."""
    if views == 1:
        return net(images)
    # divided before the next call, because a CUDA graph overwrites the result of the one before
    return sum((net(each) / views for each in oriented(images, views)[1:]), net(images) / views)
