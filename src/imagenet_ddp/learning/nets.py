"""Nets by name, with a head of the right width."""

from collections.abc import Mapping
from typing import Any

import torch
import torchvision
from hydra.utils import instantiate
from torch import nn


def make_net(model: Mapping[str, Any], num_classes: int, seed: int) -> nn.Module:
    """model: the resolved model.* keys. The same weights in every process with the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if model["_target_"]:
            net = instantiate({"_target_": model["_target_"], **model["args"]}, num_classes=num_classes)
        else:
            arguments = dict(model["args"])
            if model["name"] in ("googlenet", "inception_v3"):
                # else they return auxiliary outputs beside the logits, and initialise their weights for half a minute
                arguments = {"aux_logits": False, "init_weights": False, **arguments}
            net = torchvision.models.get_model(model["name"], weights=None, num_classes=num_classes, **arguments)
    return net.to(memory_format=torch.channels_last) if model["channels_last"] else net
