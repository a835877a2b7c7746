"""Try a net on one image: whether it accepts the size, and whether its batch norm can be trained."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.features import evaluating
from imagenet_ddp.system.text import first_line


def require_image_size(net: nn.Module, name: str, key: str, image_size: int, whose: str = "model") -> None:
    """Raise ConfigError if the net does not accept square images of image_size pixels. key: the option that sets the
    size, and whose: the group of the net's options, for the message.

    Evaluates one image. For small nets, this takes a fifth of the time that the meta device takes to compute shapes.
    """
    copied = copy.deepcopy(net).eval()  # because some nets of timm cache values of their weights in evaluation
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
            copied(torch.zeros(1, 3, image_size, image_size))
    except Exception as error:  # RuntimeError or AssertionError, depending on the net
        other = "data.image_size=224" if key == "data.image_size" else f"{key}=null"
        raise ConfigError(
            f"{whose}.name={name} must accept images of {key}={image_size} pixels, but does not "
            f"({first_line(error).rstrip('.')}). Hint: set {other}, or choose another net."
        ) from error


def require_batch(model: ModelConfig, net: nn.Module, images: int, image_size: int, smallest: int = 2) -> None:
    """Raise ConfigError if batch norm would see a single value per channel in training.

    images: the fewest images that a device gets from a full batch; more than one cannot fail.
    image_size: the smallest in training. smallest: data.batch_size that works. The net runs once in evaluation mode,
    which changes none of its statistics.
    """
    layers = [layer for layer in net.modules() if isinstance(layer, _BatchNorm)]
    is_frozen = model.batch_norm == "frozen" or (model.freeze and model.unfreeze_epoch is None)
    if images > 1 or is_frozen or not layers:
        return
    found: list[nn.Module] = []

    def look(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].numel() == inputs[0].shape[1]:
            found.append(layer)

    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    weight = next(net.parameters())
    try:
        with torch.no_grad(), evaluating(net):
            net(weight.new_zeros(1, 3, image_size, image_size))
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        raise ConfigError(
            f"each device must get at least 2 images of {image_size} pixels per forward pass, got 1, because batch "
            f"norm of this net would have one value per channel. Hint: set data.batch_size={smallest}."
        )
