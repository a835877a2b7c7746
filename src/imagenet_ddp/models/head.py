"""Find the layers of a net that compute the logits, and start them anew."""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn

from imagenet_ddp.config.validators import is_mapping


def head_names(net: nn.Module, num_classes: int) -> tuple[str, ...]:
    """Return the names of the layers that compute the logits. Most nets have one, a net with a distillation token has
    two, and a net whose last layer has another number of outputs has none.

    A head is the last linear or convolutional layer with one output per class, in each of the classifiers that timm
    names in a net's pretrained_cfg, or in the whole net for other nets.
    """
    config: Any = getattr(net, "pretrained_cfg", None)
    named: Any = (config.get("classifier") or ()) if is_mapping(config) else ""  # a headless net names none
    classifiers: tuple[str, ...] = (named,) if isinstance(named, str) else tuple(named)
    heads = (_last_layer(net, name, num_classes) for name in classifiers)
    return tuple(head for head in heads if head is not None)


def _last_layer(net: nn.Module, within: str, num_classes: int) -> str | None:
    """Return the name of the last layer with one output per class. within: name of a part of the net; "": all of it."""
    found = None
    for name, module in cast("Iterator[tuple[str, nn.Module]]", net.named_modules()):
        is_linear = isinstance(module, nn.Linear) and module.out_features == num_classes
        is_convolution = isinstance(module, nn.Conv2d) and module.out_channels == num_classes
        if (is_linear or is_convolution) and (not within or f"{name}.".startswith(f"{within}.")):
            found = name
    return found


def is_in_head(name: str, heads: tuple[str, ...]) -> bool:
    """Return whether a parameter belongs to a layer that computes the logits."""
    return name.startswith(tuple(f"{head}." for head in heads))


@torch.no_grad()
def start_head(net: nn.Module, heads: tuple[str, ...]) -> None:
    """Make the logits of new heads nearly equal, so that the first loss is ln(classes) and its gradients do not destroy
    trained layers: the initial values of some nets are so large that the loss starts at twice this value.

    The weights become a thousandth of their random values, not 0, because zeros would never learn in front of a ReLU,
    which SqueezeNet has after its last layer.
    """
    for name in heads:
        head = net.get_submodule(name)
        for key, parameter in head.named_parameters():
            parameter.mul_(0.0 if key == "bias" else 1e-3)
