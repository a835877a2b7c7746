"""Find tensors that contain NaN or inf."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


def nonfinite_names(module: "nn.Module", tensors: "Mapping[str, Tensor]") -> list[str]:
    """Return the names of tensors that contain NaN, and of the module's parameters that contain inf. Buffers may
    contain inf, because a mask adds -inf."""
    parameters = {name for name, _ in module.named_parameters()}
    return [
        name for name, tensor in tensors.items() if (~tensor.isfinite() if name in parameters else tensor.isnan()).any()
    ]
