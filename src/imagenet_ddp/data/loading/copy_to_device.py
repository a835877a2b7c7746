"""Copy batches to the device."""

from collections.abc import Mapping
from typing import Any

import torch


class CopyToDevice:
    """Copy the tensors of a batch to a device. On a GPU, they are copied on a separate stream while the model computes
    on the previous batch. Lightning's own copies would wait for that computation, and its search for tensors in the
    batch takes 40 µs."""

    def __init__(self) -> None:
        self._copies: torch.cuda.Stream | None = None

    def __call__(self, batch: Mapping[str, Any], device: torch.device) -> Any:
        if device.type != "cuda":
            return {name: value.to(device) if torch.is_tensor(value) else value for name, value in batch.items()}
        self._copies = self._copies or torch.cuda.Stream(device)
        compute, moved = torch.cuda.current_stream(device), dict(batch)
        with torch.cuda.stream(self._copies):
            for name, value in batch.items():
                if torch.is_tensor(value):
                    moved[name] = value.to(device, non_blocking=True)
                    moved[name].record_stream(compute)  # the next copy must not overwrite data still in use
        compute.wait_stream(self._copies)
        return moved
