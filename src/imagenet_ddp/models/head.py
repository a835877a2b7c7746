"""Find the layers of a net that compute the logits, reset them to nearly equal logits, and compute the features
before them."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from imagenet_ddp.config.validators import is_mapping
from imagenet_ddp.errors import ConfigError


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


@contextmanager
def evaluating(net: nn.Module) -> Generator[None]:
    """Put a net into evaluation mode in the block, and restore the mode of each of its layers afterwards."""
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@torch.no_grad()
def compute_features(net: nn.Module, head: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return (the input of the last layer, (B, features), or the images if the net does not call it; the output of the
    net). head: the layer's name. Also a net that is compiled computes eagerly: it would be compiled for these few
    calls, and then without the hook."""
    inputs: list[Tensor] = []
    hook = net.get_submodule(head).register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    try:
        logits = net.forward(images)
    finally:
        hook.remove()
    return next(iter(inputs), images), logits


def only_linear(net: nn.Module, heads: Sequence[str]) -> nn.Linear | None:
    """Return the layer that computes the logits if there is one and it is linear. heads: names of such layers."""
    layers = [net.get_submodule(each) for each in heads]
    return layers[0] if len(layers) == 1 and isinstance(layers[0], nn.Linear) else None


def has_features(net: nn.Module, heads: Sequence[str], image_size: int) -> bool:
    """Return whether the output of the net is that of one linear layer. heads: names of the layers that seem to compute
    the logits."""
    if (layer := only_linear(net, heads)) is None:
        return False
    with torch.no_grad(), evaluating(net):
        features, logits = compute_features(net, heads[0], layer.weight.new_zeros(1, 3, image_size, image_size))
        return features.dim() == 2 and torch.equal(layer(features), logits)


def require_features(
    net: nn.Module,
    name: str,
    heads: tuple[str, ...],
    image_size: int,
    what: str = "model.head=regression needs",
    hint: str = "set model.head=new",
) -> None:
    """Raise ConfigError if the net's output is not that of one linear layer, to which a regression can be fitted.
    name: model.name. heads: as in has_features. what, hint: begin and end of the message."""
    if not has_features(net, heads, image_size):
        raise ConfigError(f"{what} a net that ends in one linear layer, but {name} does not. Hint: {hint}.")
