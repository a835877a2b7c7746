"""Find what a file of weights may hold that no program can use: NaN or inf, tensors without numbers, and no end."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_REPEATED = 2**30  # bytes of a tensor that repeats a stored one, as tables of positions in a net may
MOST_VALUES, MOST_LEVELS = 10_000_000, 100  # of a file beside the numbers of its tensors


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


def is_endless(content: Any) -> bool:
    """Return whether mappings and lists contain one another so often that nobody can walk through them: a list may
    contain itself, and 40 of which each contains the next one twice have a million million ends. content: of
    torch.load."""
    num_values = dict[int, int]()  # id of what has been walked through -> values in it, at all levels
    around = set[int]()  # ids of what contains the last one that waits
    waiting = [content]
    while waiting:
        value = waiting[-1]
        inner = [] if id(value) in num_values else _inside(value)
        new = [each for each in inner if id(each) not in num_values]
        if new:
            around.add(id(value))
            if len(around) > MOST_LEVELS or any(id(each) in around for each in new):
                return True
            waiting += new
            continue
        waiting.pop()
        if id(value) not in num_values:
            around.discard(id(value))
            count = len(value) if isinstance(value, _HOLDERS) else 0
            num_values[id(value)] = count + sum(num_values[id(each)] for each in inner)
            if num_values[id(value)] > MOST_VALUES:
                return True
    return False


_HOLDERS: Any = (Mapping, list, tuple)


def _inside(value: Any) -> list[Any]:
    """Return the mappings and lists directly inside of one."""
    values = cast("Mapping[Any, Any]", value).values() if isinstance(value, Mapping) else value
    return [each for each in values if isinstance(each, _HOLDERS)] if isinstance(value, _HOLDERS) else []
