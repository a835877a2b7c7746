"""Find tensors that contain NaN or inf, and tensors of a file that are not stored in it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_REPEATED = 2**30  # bytes of a tensor that repeats a stored one, as tables of positions in a net may


def nonfinite_names(module: "nn.Module", tensors: "Mapping[str, Tensor]") -> list[str]:
    """Return the names of tensors that contain NaN, and of the module's parameters that contain inf. Buffers may
    contain inf, because a mask adds -inf."""
    parameters = {name for name, _ in module.named_parameters()}
    return [
        name for name, tensor in tensors.items() if (~tensor.isfinite() if name in parameters else tensor.isnan()).any()
    ]


def not_stored(content: Any) -> str:
    """Return the name of a tensor that the file does not hold, "" if there is none: one without numbers (meta), a
    sparse one, and one of stride 0, with which a small file would fill the memory. content: of torch.load."""
    import torch

    waiting, seen = list[tuple[str, Any]]([("", content)]), set[int]()
    while waiting:
        name, value = waiting.pop()
        if id(value) in seen:  # a list may contain itself
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            waiting += [(str(key), inner) for key, inner in cast("Mapping[Any, Any]", value).items()]
        elif isinstance(value, list | tuple):
            waiting += [(name, inner) for inner in cast("list[Any]", value)]
        elif isinstance(value, torch.Tensor):
            is_plain = value.layout == torch.strided and value.device.type == "cpu"
            most = max(value.untyped_storage().nbytes(), MOST_REPEATED) if is_plain else 0
            if not is_plain or value.numel() * value.element_size() > most:
                return name
    return ""
