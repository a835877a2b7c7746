"""Load pretrained weights into a net: fit their names, their number of classes and the size of their images to it."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.head import is_in_head, start_head
from imagenet_ddp.models.weights.pretrained import Weights
from imagenet_ddp.system.nonfinite import nonfinite_names
from imagenet_ddp.system.text import class_list, count_noun, shorten_list

# Names in torchvision's older files, which its own nets read too: norm.1 in densenets, linear_1 in vision transformers.
_RENAMED = (
    (re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)"), r"\1\2"),
    (re.compile(r"(encoder_layer_\d+\.mlp)\.linear_1\."), r"\1.0."),
    (re.compile(r"(encoder_layer_\d+\.mlp)\.linear_2\."), r"\1.3."),
)
DONT_MATTER = ("num_batches_tracked", "n_averaged", "relative_position_index")


def load_weights_into(
    net: nn.Module, weights: Weights, heads: tuple[str, ...], classes: Sequence[str], refitted: str = ""
) -> tuple[str, bool]:
    """Load all weights, except those of heads that do not fit. Return (a sentence about the loaded weights, whether
    the heads were loaded for all classes).

    heads: names of the net's last layers. If the weights name their classes, each class that both have gets its own
    rows of these layers, in whatever order, and the rows of new classes are reinitialised; without names, the heads are
    loaded if the number of classes is the same. refitted: why no rows are kept beside those of new classes; "": they
    are. Raises ConfigError if any other tensor is missing or has another shape, or if any value is NaN or inf.
    """
    own = net.state_dict()
    found = _by_own_names(weights.tensors, net, heads)
    _resize_positions(own, found)
    stored, head = weights.contents.get("classes"), [name for name in own if is_in_head(name, heads)]
    loaded = _of_backbone(own, found, head, weights)
    theirs = _stored_rows(own, found, head, stored, classes)
    known = [row for row, other in enumerate(theirs) if other >= 0]
    head_fits = len(known) == len(theirs)
    num_loaded = len(loaded) + head_fits * len(head)
    if not head_fits:
        start_head(net, heads)
    if known and (head_fits or not refitted):
        for name in head:
            loaded[name] = own[name].clone()
            loaded[name][known] = found[name][[theirs[row] for row in known]].to(own[name].dtype)
    if broken := nonfinite_names(net, loaded):
        raise ConfigError(
            f"{weights.origin} must hold finite weights, but {len(broken)} of its tensors hold NaN or inf "
            f"({shorten_list(broken, 3)}), because its training diverged. Hint: use an earlier checkpoint."
        )
    own.update(loaded)
    net.load_state_dict(own)  # with the version of each layer's format, without which MNASNet refuses its weights
    unused = [name for name in found if name not in own and not name.endswith(DONT_MATTER)]
    parts = [f"Weights of {weights.origin}: {count_noun(num_loaded, 'tensor')} loaded"]
    if not head_fits and heads:
        names, is_one = " and ".join(heads), len(heads) == 1
        be = f"{'is' if is_one else 'are'} new"
        if known and not refitted:
            new = class_list(name for name, other in zip(classes, theirs, strict=True) if other < 0)
            kept = class_list(classes[row] for row in known)
            parts.append(f"{names} {'keeps' if is_one else 'keep'} the rows of {kept}, and {be} for {new}")
        else:
            has_head = any(is_in_head(name, heads) for name in found)
            has_others = stored is not None and not {*classes} <= {*stored}
            why = "other classes" if has_others else "another number of classes" if has_head else "not in the file"
            parts.append(f"{names} {be} ({refitted if known else why})")
    if unused:
        parts.append(f"{count_noun(len(unused), 'tensor')} not used ({shorten_list(unused, 3)})")
    return "; ".join(parts) + ".", head_fits


def _of_backbone(
    own: Mapping[str, Tensor], found: Mapping[str, Tensor], head: Sequence[str], weights: Weights
) -> dict[str, Tensor]:
    """Return the stored tensors of all layers but the head. Raises ConfigError if one is missing or has another
    shape."""
    loaded: dict[str, Tensor] = {}
    wrong: list[str] = []
    for name, tensor in own.items():
        if name in head:
            continue
        if name in found and found[name].shape == tensor.shape:
            loaded[name] = found[name]
        elif not name.endswith(DONT_MATTER):
            wrong.append(name if name not in found else f"{name} {tuple(found[name].shape)}, not {tuple(tensor.shape)}")
    if wrong:
        foreign = [name for name in weights.tensors if name not in found or name not in own]
        names = f"; it has {shorten_list(foreign, 3)}" if foreign else ""
        raise ConfigError(
            f"{weights.origin} must hold the weights of this net, but {len(wrong)} of its {len(own)} tensors are "
            f"missing or have another shape: {shorten_list(wrong, 3)}{names}. Hint: set model.name (of timm: with "
            "model=timm), model.args and data.image_size to the values with which these weights were trained."
        )
    return loaded


def _stored_rows(
    own: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    head: Sequence[str],
    stored: Sequence[str] | None,
    classes: Sequence[str],
) -> list[int]:
    """Return the row of each class in the heads of a file, -1 for a class that they do not have. own, found: tensors of
    the net and of the file. head: their names in the heads. stored: classes of the file, None if it does not say."""
    num_classes = len(own[head[0]]) if head else len(classes)
    num_stored = num_classes if stored is None else len(stored)
    if any(name not in found or found[name].shape != (num_stored, *own[name].shape[1:]) for name in head):
        return [-1] * num_classes
    row_of = {name: row for row, name in enumerate(classes if stored is None else stored)}
    return [*range(num_classes)] if stored is None else [row_of.get(name, -1) for name in classes]


def num_outputs(net: nn.Module, weights: Weights, heads: tuple[str, ...]) -> int | None:
    """Return the number of classes of the weights: the outputs of their last layer; None if they have none. net: the
    same net with any number of classes. heads: names of its last layers."""
    found = _by_own_names(weights.tensors, net, heads)
    sizes = [found[f"{head}.weight"].shape[0] for head in heads if f"{head}.weight" in found]
    return sizes[0] if sizes else None


def _by_own_names(tensors: Mapping[str, Tensor], net: nn.Module, heads: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the tensors by the names that the net gives them, as far as it has them."""
    own = net.state_dict()
    for old, new in _RENAMED:
        tensors = {old.sub(new, name): tensor for name, tensor in tensors.items()}
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
    prefix = _validated([prefix for prefix, count in prefixes.items() if count == most])
    rest = {name: value for name, value in tensors.items() if not name.startswith(prefix)}
    return rest | {name.removeprefix(prefix): value for name, value in tensors.items() if name not in rest}


def _validated(prefixes: Sequence[str]) -> str:
    """Return which prefix of several copies of the net has the weights that its training validated: an average, called
    ema, or teacher beside a student. Without a student, a teacher is another net, whose outputs this one learnt."""
    averages = ("ema", "teacher") if any("student" in each for each in prefixes) else ("ema",)
    found = [each for each in prefixes if any(word in each for word in averages)]
    return (found or [each for each in prefixes if "teacher" not in each] or prefixes)[0]


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
    parts = [name.removeprefix(f"{head}.") for name in own if is_in_head(name, (head,))]
    if "weight" not in parts or any(is_in_head(name, (head,)) and name in own for name in found):
        return
    like_it = own[f"{head}.weight"]
    unused = {
        name.removesuffix("weight"): weight
        for name, weight in found.items()
        if name not in own and name.rpartition(".")[2] == "weight" and weight.dim() == like_it.dim()
    }
    fitting = [
        prefix
        for prefix, weight in unused.items()
        if weight.shape[1:] == like_it.shape[1:]
        and all(f"{prefix}{part}" in found for part in parts)
        and not any(other != prefix and each.shape[1] == len(weight) for other, each in unused.items())
    ]
    if len(fitting) == 1:
        for part in parts:
            found[f"{head}.{part}"] = found.pop(f"{fitting[0]}{part}")


def _resize_positions(own: Mapping[str, Tensor], found: dict[str, Tensor]) -> None:
    """Resize the position embeddings of a vision transformer that was trained at another image size, in place, with
    bicubic interpolation. They are (1, class token and a square of patches, width)."""
    for name, wanted in own.items():
        old = found.get(name)
        if old is None or name.rpartition(".")[2] not in ("pos_embedding", "pos_embed"):
            continue
        if old.shape == wanted.shape or not old.dim() == wanted.dim() == 3:
            continue
        before, after = (math.isqrt(each.shape[1]) for each in (old, wanted))
        extra = wanted.shape[1] - after**2  # the class token
        if old.shape[1:] != (before**2 + extra, wanted.shape[2]):
            continue
        grid = old[:, extra:].reshape(1, before, before, -1).permute(0, 3, 1, 2).float()
        grid = nn.functional.interpolate(grid, size=(after, after), mode="bicubic", align_corners=False)
        found[name] = torch.cat([old[:, :extra], grid.flatten(2).transpose(1, 2).to(old.dtype)], dim=1)
