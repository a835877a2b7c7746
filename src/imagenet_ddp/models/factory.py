"""Create a net by its name, with a head of the right width."""

import copy
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
import torchvision
from torch import nn

from imagenet_ddp.config.instantiate import make
from imagenet_ddp.config.schema import ModelConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import first_line


def create_model(model: str | Mapping[str, Any], num_classes: int, seed: int = 0, image_size: int = 224) -> nn.Module:
    """Return the net with the same initial weights in every process of the same seed.

    model: a name of torchvision.models, or the resolved model.* keys. image_size: pixels of height and width; raises
    ConfigError where the net cannot take them.
    """
    if isinstance(model, str):
        model = asdict(ModelConfig(name=model))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if model["_target_"]:
            net = make("model._target_", model["_target_"], model["args"], num_classes=num_classes)
        else:
            arguments = dict(model["args"])
            if model["name"] in ("googlenet", "inception_v3"):
                # by default they return auxiliary outputs beside the logits, and take half a minute to initialise
                arguments = {"aux_logits": False, "init_weights": False, **arguments}
            net = torchvision.models.get_model(model["name"], weights=None, num_classes=num_classes, **arguments)
    if not model["_target_"]:
        _require_image_size(net, model["name"], image_size)
    return net.to(memory_format=torch.channels_last) if model["channels_last"] else net


def _require_image_size(net: nn.Module, name: str, image_size: int) -> None:
    """A forward pass of shapes alone, without numbers (device meta)."""
    shapes = copy.deepcopy(net).to("meta").eval()
    try:
        with torch.no_grad():
            shapes(torch.empty(1, 3, image_size, image_size, device="meta"))
    except Exception as error:  # RuntimeError and AssertionError, by the net
        reason = first_line(error)
        raise ConfigError(
            f"model.name={name} must take images of data.image_size={image_size} pixels, but cannot "
            f"({reason.rstrip('.')}). Hint: data.image_size=224, or another net."
        ) from error
