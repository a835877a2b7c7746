"""Group a net's parameters by learning rate and weight decay."""

import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from imagenet_ddp.models.head import is_in_head

# A member of a list (layer1.0, features.3, stages.2.blocks.1), or a module of several layers with a number in its name.
_BLOCK = re.compile(r"^(?:[A-Za-z_]\w*\.)*?(?:(?<=\.)\d+|\w*[A-Za-z_]\d+(?=\.[^.]+\.))(?:\.\d+|\.blocks\.\d+)?(?=\.)")


def parameter_groups(
    net: nn.Module, optim: Mapping[str, Any], lr: float, heads: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return the trained parameters in groups of equal learning rate and weight decay, in the net's order.

    optim: the resolved optim.* keys. lr: optim.lr after scaling; optim.lr_head is scaled by the same factor.
    optim.layer_decay is the factor on the learning rate from each block to the block before it. heads: names of the
    layers that compute the logits.
    """
    no_decay = _without_decay(net, optim["no_decay_on"])
    named = [(name, parameter) for name, parameter in net.named_parameters() if parameter.requires_grad]
    depths, num_blocks = block_depths([name for name, _ in net.named_parameters() if not is_in_head(name, heads)])
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for name, parameter in named:
        if is_in_head(name, heads):
            factor = 1.0 if optim["lr_head"] is None else optim["lr_head"] / optim["lr"]
        else:
            factor = (optim["layer_decay"] or 1.0) ** (num_blocks - depths[name])
        # the key is the factor, not the scaled rate, because the groups must not depend on the number of devices
        group = groups.setdefault((factor, name in no_decay), {"params": [], "lr": lr * factor})
        group["params"].append(parameter)
        if name in no_decay:
            group["weight_decay"] = 0.0  # all other groups have the weight decay of the optimizer
    return list(groups.values())


def block_depths(names: list[str]) -> tuple[dict[str, int], int]:
    """Return (name -> block number, number of blocks including the stem). Block 0 is the stem. Layers after the last
    block, such as a final normalisation, belong to the last block."""
    blocks: list[str] = []
    depths = {}
    for name in names:
        match = _BLOCK.match(name)
        if match and match.group() not in blocks:
            blocks.append(match.group())
        depths[name] = blocks.index(match.group()) + 1 if match else len(blocks)
    return depths, len(blocks) + 1


def _without_decay(net: nn.Module, kinds: list[str]) -> set[str]:
    """Return the names of the parameters without weight decay. kinds: any of norm (all parameters of normalisation
    layers), bias (parameters whose name ends in bias) and embedding (class tokens and position embeddings)."""
    found = set()
    for prefix, module in net.named_modules():
        is_norm = "norm" in type(module).__name__.lower() or "normalization" in type(module).__module__
        for name, _ in module.named_parameters(prefix, recurse=False):
            last = name.rpartition(".")[2]
            if (
                ("norm" in kinds and is_norm)
                or ("bias" in kinds and last.endswith("bias"))
                or (
                    "embedding" in kinds
                    and re.search(r"pos_embed|cls_token|class_token|position_bias|dist_token", last)
                )
            ):
                found.add(name)
    return found
