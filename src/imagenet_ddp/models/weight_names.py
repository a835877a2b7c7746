"""Fit the tensors of another program to a net: their names, and the size of their position embeddings."""

import math
from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from imagenet_ddp.models.head import is_in_head

AVERAGES = ("ema", "teacher")  # words in the prefix of averaged weights beside those that were trained


def by_own_names(tensors: Mapping[str, Tensor], net: nn.Module, heads: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the tensors by the names that the net gives them, as far as it has them."""
    own = net.state_dict()
    forms = _without_prefixes(tensors, own), _by_position(tensors, net)
    found = max(forms, key=lambda form: len(own.keys() & form.keys()))
    if len(heads) == 1:
        _rename_head(own, found, heads[0])
    return found


def _without_prefixes(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without the prefix that wrappers have added to the names of most of the net's tensors, such as
    module.encoder_q. Tensors with another prefix, such as a head beside a backbone, keep their names."""
    prefixes: Counter[str] = Counter()
    for name in tensors:
        parts = name.split(".")
        suffixes = (".".join(parts[start:]) for start in range(len(parts)))
        prefixes.update(name.removesuffix(suffix) for suffix in suffixes if suffix in own)
    if not prefixes:
        return dict(tensors)
    most = max(prefixes.values())
    best = [prefix for prefix, count in prefixes.items() if count == most]
    prefix = next((each for each in best if any(word in each for word in AVERAGES)), best[0])
    rest = {name: value for name, value in tensors.items() if not name.startswith(prefix)}
    return rest | {name.removeprefix(prefix): value for name, value in tensors.items() if name not in rest}


def _by_position(tensors: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Return the tensors with the names of the net's parts in place of their positions, as fastai's body of a net of
    torchvision has them: 0.4.1.conv1.weight for layer1.1.conv1.weight. Those of fastai's head, 1., keep their names."""
    parts = [name for name, _ in net.named_children()]
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        position, _, rest = name.removeprefix("0.").partition(".")
        is_part = name.startswith("0.") and position.isdigit() and int(position) < len(parts)
        found[f"{parts[int(position)]}.{rest}" if is_part else name] = tensor
    return found


def _rename_head(own: Mapping[str, Tensor], found: dict[str, Tensor], head: str) -> None:
    """Give the last layer the net's own name, in place, if the file calls it otherwise (mmpretrain: head.fc). It is the
    only unused layer that has the same parameters with the same numbers of inputs, and none takes its outputs."""
    wanted = {name.rpartition(".")[2]: tensor for name, tensor in own.items() if is_in_head(name, (head,))}
    if "weight" not in wanted or any(is_in_head(name, (head,)) and name in own for name in found):
        return
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in found.items():
        if name not in own:
            layer, _, part = name.rpartition(".")
            layers.setdefault(layer, {})[part] = tensor
    like_it = wanted["weight"]
    inputs = [
        (layer, parts["weight"].shape[1])
        for layer, parts in layers.items()
        if "weight" in parts and parts["weight"].dim() == like_it.dim() > 1
    ]
    fitting = [
        layer
        for layer, parts in layers.items()
        if parts.keys() == wanted.keys()
        and parts["weight"].shape[1:] == like_it.shape[1:]
        and not any(other != layer and size == parts["weight"].shape[0] for other, size in inputs)
    ]
    if len(fitting) == 1:
        for part in wanted:
            found[f"{head}.{part}"] = found.pop(f"{fitting[0]}.{part}" if fitting[0] else part)


def resize_positions(own: Mapping[str, Tensor], found: dict[str, Tensor]) -> None:
    """Resize the position embeddings of a vision transformer that was trained at another image size, in place, with
    bicubic interpolation."""
    for name, tensor in own.items():
        if name.rpartition(".")[2] not in ("pos_embedding", "pos_embed") or name not in found:
            continue
        old = found[name]
        if old.shape == tensor.shape or old.dim() != 3 or old.shape[2] != tensor.shape[2]:
            continue
        # (1, class token and a square of patches, width)
        sides = [math.isqrt(length) for length in (old.shape[1], tensor.shape[1])]
        num_extra = [length - side**2 for length, side in zip((old.shape[1], tensor.shape[1]), sides, strict=True)]
        if num_extra[0] != num_extra[1]:
            continue
        extra, grid = old[:, : num_extra[0]], old[:, num_extra[0] :]
        grid = grid.reshape(1, sides[0], sides[0], -1).permute(0, 3, 1, 2)
        grid = nn.functional.interpolate(grid.float(), size=(sides[1],) * 2, mode="bicubic", align_corners=False)
        grid = grid.permute(0, 2, 3, 1).reshape(1, sides[1] ** 2, -1)
        found[name] = torch.cat([extra, grid.to(old.dtype)], dim=1)
