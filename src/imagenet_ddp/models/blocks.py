"""Find the repeated blocks of a net, and recompute their activations in the backward pass instead of keeping them."""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def repeated_blocks(net: nn.Module) -> list[nn.Module]:
    """Return the outermost modules that have layers of their own and whose class occurs more than once: a ResNet's
    residual blocks, a transformer's layers. [] if no class does."""
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
    """Make each repeated block keep only its input in training, and recompute the rest in the backward pass. Names,
    outputs and gradients do not change. Return False if the net has no such blocks."""
    blocks = repeated_blocks(net)
    for block in blocks:
        block.__class__ = _checkpointed(type(block))  # instead of a method of the instance: copies of the net keep it
    return bool(blocks)


@functools.cache
def _checkpointed(kind: type[nn.Module]) -> type[nn.Module]:
    """Return one subclass for all blocks of a class, so that they still count as repeated blocks."""
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
def _with_copied_buffers(block: nn.Module) -> Iterator[None]:
    """Make the second forward pass update copies, so that batch norm's statistics count each batch once."""
    own = [(module, name, buffer) for module in block.modules() for name, buffer in module.named_buffers(recurse=False)]
    for module, name, buffer in own:
        setattr(module, name, buffer.clone())
    try:
        yield
    finally:
        for module, name, buffer in own:
            setattr(module, name, buffer)
