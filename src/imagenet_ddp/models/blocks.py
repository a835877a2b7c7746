"""Find the repeated blocks of a net, and recompute their activations in the backward pass instead of keeping them."""

import contextlib
import functools
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

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
