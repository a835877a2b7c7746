"""Restrict the predictions of a net to some of its classes."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ClassSubset(nn.Module):
    """A wrapper that sets the logits of a net to -inf, except those of the classes at `positions`."""

    def __init__(self, net: nn.Module, positions: Sequence[int], num_classes: int):
        super().__init__()
        self.net = net
        self.excluded: Tensor
        excluded = torch.ones(num_classes, dtype=torch.bool)
        excluded[list(positions)] = False
        self.register_buffer("excluded", excluded, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images).masked_fill(self.excluded, float("-inf"))
