"""Measure how much of a net consists of depthwise convolutions, which CPUs compute slowly in bf16."""

from typing import Any

import torch
from torch import Tensor, nn

from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.models.factory import create_model


def depthwise_share(model: ModelConfig, image_size: int) -> float:
    """Return the share of depthwise convolutions in the multiplications of a forward pass, without computing one.

    Returns 0.0 for a class of the user's own, which may do anything when it is made,
    and for a net that cannot be made, which is reported where the net of the run is made.
    """
    if model.target:
        return 0.0
    counts = {True: 0, False: 0}

    def count(layer: nn.Conv2d | nn.Linear, _: Any, output: Tensor) -> None:
        is_depthwise = isinstance(layer, nn.Conv2d) and layer.groups == layer.in_channels > 1
        counts[is_depthwise] += output.numel() * layer.weight[0].numel()

    try:
        with torch.device("meta"), torch.no_grad():
            net = create_model(model, 1000, 0, image_size).eval()
            for layer in net.modules():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    layer.register_forward_hook(count)
            net(torch.zeros(1, 3, image_size, image_size))
    except Exception:  # of any kind, from torchvision or timm
        return 0.0
    return counts[True] / max(sum(counts.values()), 1)
