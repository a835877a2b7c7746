"""Find the layers of a net that compute the logits, and start them anew: from nearly equal logits, or from a logistic
regression on the features before them."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imagenet_ddp.config.validators import is_mapping
from imagenet_ddp.errors import ConfigError

L2 = tuple(10 ** (half / 2) for half in range(1, -7, -1))  # strengths tried on the held-out tenth: 3.2 to 0.001


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
    """Return (the input of the last layer, (B, features); the output of the net). head: the layer's name."""
    inputs: list[Tensor] = []
    hook = net.get_submodule(head).register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    try:
        logits = net(images)
    finally:
        hook.remove()
    return inputs[0], logits


def require_features(net: nn.Module, name: str, heads: tuple[str, ...], image_size: int) -> None:
    """Raise ConfigError if the net's output is not that of one linear layer, to which a regression can be fitted.
    name: model.name. heads: names of the layers that compute the logits."""
    layers = [net.get_submodule(each) for each in heads]
    if len(layers) == 1 and isinstance(layers[0], nn.Linear):
        weight = layers[0].weight
        with evaluating(net):
            features, logits = compute_features(net, heads[0], weight.new_zeros(1, 3, image_size, image_size))
        if features.dim() == 2 and torch.equal(layers[0](features), logits):
            return
    raise ConfigError(
        f"model.head=regression needs a net that ends in one linear layer, but {name} does not. "
        "Hint: set model.head=new."
    )


@dataclass(frozen=True)
class Regression:
    """A logistic regression: logits = features @ weight.T + bias.

    l2: chosen factor of half the squared weights of the standardised features. accuracy: share of correct classes among
    the num_held_out images, by a regression to the others; the returned weights are fitted to all images.
    """

    weight: Tensor  # float32 (num_classes, features)
    bias: Tensor  # float32 (num_classes,)
    l2: float
    accuracy: float
    num_held_out: int


def fit_regression(features: Tensor, targets: Tensor, num_classes: int, seed: int) -> Regression:
    """Fit a multinomial logistic regression. Its L2 penalty is the strongest whose loss on a held-out tenth is at most
    one standard error above the lowest (the one-standard-error rule), because the layers below learn little from a last
    layer that is already certain of all training images.

    features: float (N, features), N > 1. targets: int64 (N,). seed: chooses the held-out images.
    """
    features = features.to(torch.float32 if features.device.type == "mps" else torch.float64)  # mps has no float64
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed)).to(features.device)
    count = max(len(order) // 10, 1)
    held_out, rest = order[:count], order[count:]
    wanted = targets[held_out].cpu()
    tried: list[tuple[float, float, float, float]] = []
    for l2 in L2:
        logits = F.linear(features[held_out].float().cpu(), *minimise(features[rest], targets[rest], num_classes, l2))
        losses = F.cross_entropy(logits, wanted, reduction="none")
        error = losses.std(correction=0).item() / count**0.5
        tried.append((losses.mean().item(), error, l2, (logits.argmax(1) == wanted).float().mean().item()))
        if tried[-1][0] > sum(min(tried)[:2]):  # weaker ones fit the training images ever more closely
            break
    lowest, error, *_ = min(tried)
    l2, hits = max((l2, hits) for loss, _, l2, hits in tried if loss <= lowest + error)
    return Regression(*minimise(features, targets, num_classes, l2), l2, hits, count)


@torch.enable_grad()
def minimise(features: Tensor, targets: Tensor, num_classes: int, l2: float) -> tuple[Tensor, Tensor]:
    """Return (weight, bias) at the minimum of the mean cross entropy plus l2 / 2 times the squared weights, where the
    features have mean 0 and variance 1. The returned weights, on the CPU, are those of the features as given."""
    mean, std = features.mean(0), features.std(0, correction=min(len(features) - 1, 1))
    std = std.clamp_min(0.01 * std.mean())  # a feature that hardly varies must not become noise of variance 1
    std = std.where(std > 0, 1.0)  # one image, or all features equal
    scaled = (features - mean) / std
    weight = scaled.new_zeros(num_classes, scaled.shape[1]).requires_grad_()
    bias = scaled.new_zeros(num_classes).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=200, tolerance_grad=1e-5, tolerance_change=1e-9, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(scaled, weight, bias), targets) + l2 / 2 * weight.square().sum()
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        return loss

    optimizer.step(objective)  # pyright: ignore[reportUnknownMemberType]
    weight = weight.detach() / std
    return weight.float().cpu(), (bias.detach() - weight @ mean).float().cpu()
