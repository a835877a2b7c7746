"""Distil: use a trained net's probabilities as targets in addition to the labels (Hinton et al. 2015,
arXiv:1503.02531)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Teacher:
    """A net that is evaluated but never trained. It is not an nn.Module, so its weights are in no checkpoint, no
    average and no communication between ranks.

    share: weight of the teacher in the loss. temperature: divides the logits of both nets.
    """

    def __init__(self, net: nn.Module, share: float, temperature: float):
        self._net = net.eval().requires_grad_(False)
        self.share, self._temperature = share, temperature

    def __deepcopy__(self, memo: dict[int, Any]) -> "Teacher":
        return self  # averages of the weights copy the whole LightningModule, but need no second teacher

    def to(self, device: torch.device) -> None:
        self._net.to(device)

    def losses(self, images: Tensor, logits: Tensor) -> Tensor:
        """Return the divergence of the net's probabilities from the teacher's for each image, float32 (B,). It is
        multiplied by temperature², because its gradients would otherwise shrink as the temperature rises. images: the
        batch as the net receives it. logits: the output of the net for that batch."""
        with torch.no_grad():
            targets = (self._net(images).float() / self._temperature).log_softmax(1)
        found = (logits.float() / self._temperature).log_softmax(1)
        divergence = F.kl_div(found, targets, reduction="none", log_target=True).sum(1)
        return divergence * self._temperature**2
