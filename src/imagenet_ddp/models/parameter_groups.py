"""Group a net's parameters by learning rate and weight decay."""

import fnmatch
import re
from collections.abc import Iterator
from typing import Any, cast

from torch import nn

from imagenet_ddp.config.schema.algorithms import OPTIMIZERS
from imagenet_ddp.config.schema.learning import OptimConfig
from imagenet_ddp.models.head import is_in_head

# A member of a list (layer1.0, features.3, stages.2.blocks.1), or a module of several layers with a number in its name.
_BLOCK = re.compile(r"^(?:[A-Za-z_]\w*\.)*?(?:(?<=\.)\d+|\w*[A-Za-z_]\d+(?=\.[^.]+\.))(?:\.\d+|\.blocks\.\d+)?(?=\.)")

# Tokens, positions, and the tables and small nets that compute a bias from positions.
_EMBEDDING = re.compile(r"pos_embed|position_bias|(cls|class|dist|reg|mask)_token|cpb_mlp|attention_biases$")
_SCALES = ("layer_scale", "logit_scale")  # of torchvision, with three dimensions


def parameter_groups(net: nn.Module, optim: OptimConfig, lr: float, heads: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the trained parameters in groups of equal settings, in the net's order.

    lr: optim.lr after scaling; optim.lr_head and optim.lr_adamw are scaled by the
    same factor. optim.layer_decay is the factor on the learning rate from each block to the block before it. heads:
    names of the layers that compute the logits.
    """
    own, layers, last = _own_settings(net, optim, heads), *layer_numbers(net, heads)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, parameter in net.named_parameters():
        if not parameter.requires_grad:
            continue
        settings = own[name]
        rate = optim.lr_adamw if settings.get("use_fallback") else optim.lr
        if is_in_head(name, heads) and optim.lr_head is not None:
            factor = optim.lr_head / optim.lr
        else:
            factor = rate / optim.lr * (optim.layer_decay or 1.0) ** (last - layers[name])
        # the key is the factor, not the scaled rate, because the groups must not depend on the number of devices
        key = (factor, *settings.items())
        groups.setdefault(key, {"params": [], "lr": lr * factor, **settings})["params"].append(parameter)
    return list(groups.values())


def _own_settings(net: nn.Module, optim: OptimConfig, heads: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return the settings of each parameter that differ from those of the optimizer."""
    no_decay = _without_decay(net, no_decay_kinds(optim))
    own: dict[str, dict[str, Any]] = {}
    for name, parameter in net.named_parameters():
        own[name] = {"weight_decay": 0.0} if name in no_decay else {}
        if _has_trust_ratio(optim) and "always_adapt" not in optim.args:
            own[name]["always_adapt"] = name not in no_decay  # the trust ratio, which timm ties to weight decay
        # Muon is for the matrices of hidden layers (Jordan 2024, kellerjordan.github.io/posts/muon)
        is_vector = parameter.dim() < 2 or is_in_head(name, heads) or bool(_EMBEDDING.search(name))
        if optim.name == "muon" and not optim.target and is_vector:
            own[name] |= {"use_fallback": True, "fallback_lr_scale": 1.0}
    return own


def no_decay_kinds(optim: OptimConfig) -> list[str]:
    """Return optim.no_decay_on, or its default: lars and lamb are defined without decay of norms and biases."""
    if optim.no_decay_on is not None:
        return optim.no_decay_on
    return ["norm", "bias"] if _has_trust_ratio(optim) else []


def _has_trust_ratio(optim: OptimConfig) -> bool:
    return not optim.target and OPTIMIZERS[optim.name].trust_ratio


def layer_numbers(net: nn.Module, heads: tuple[str, ...]) -> tuple[dict[str, int], int]:
    """Return (name of a parameter -> number of its layer, counted from the input; the number of the last layer). For a
    net of timm, these are timm's own layers."""
    if hasattr(net, "group_matcher"):
        from timm.models import group_parameters  # pyright: ignore[reportUnknownVariableType]

        numbers: Any = group_parameters(net, net.group_matcher(coarse=False), reverse=True)  # type: ignore[operator]
        return numbers, max(numbers.values())
    names = [name for name, _ in net.named_parameters()]
    depths, num_blocks = block_depths([name for name in names if not is_in_head(name, heads)])
    return {name: depths.get(name, num_blocks) for name in names}, num_blocks


def block_depths(names: list[str]) -> tuple[dict[str, int], int]:
    """Return (name -> block number, number of blocks including the stem). Block 0 is the stem. Layers after the last
    block, such as a final normalisation, belong to the last block."""
    blocks: list[str] = []
    depths: dict[str, int] = {}
    for name in names:
        match = _BLOCK.match(name)
        if match and match.group() not in blocks:
            blocks.append(match.group())
        depths[name] = blocks.index(match.group()) + 1 if match else len(blocks)
    return depths, len(blocks) + 1


def _without_decay(net: nn.Module, kinds: list[str]) -> set[str]:
    """Return the names of the parameters without weight decay. kinds: any of norm (normalisation layers, and scales of
    one value per channel, such as LayerScale), bias (parameters whose name ends in bias) and embedding (tokens and
    positions). With any of these, the parameters that a net of timm names in no_weight_decay() have none either."""
    names: Any = getattr(net, "no_weight_decay", None)
    patterns: set[str] = names() if names and kinds else set()
    found: set[str] = set()
    for prefix, module in cast("Iterator[tuple[str, nn.Module]]", net.named_modules()):
        is_norm = "norm" in type(module).__name__.lower() or "normalization" in type(module).__module__
        for name, parameter in module.named_parameters(prefix, recurse=False):
            is_bias = name.endswith("bias")
            is_scale = not is_bias and (parameter.dim() < 2 or name.endswith(_SCALES))
            if (
                ("norm" in kinds and (is_norm or is_scale))
                or ("bias" in kinds and is_bias)
                or ("embedding" in kinds and _EMBEDDING.search(name))
                or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
            ):
                found.add(name)
    return found
