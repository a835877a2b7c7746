"""Show the regions of an image that support a class, with LayerCAM (Jiang et al. 2021, IEEE TIP 30, 5875)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.models.head import evaluating

LEAST_SIDE = 4  # rows and columns; a 2 × 2 layer, as with 32-pixel images, shows little and favours a corner
STRENGTH = 0.55  # opacity of the colours over the image where the map is 1


def class_activation_maps(net: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """Return one map per image, float (B, H, W) in 0..1. The maximum of each map is 1 unless the map is 0 everywhere.

    images: (B, 3, H, W), normalised. classes: int64 (B,), one per image. Each position is weighted by its own
    gradient. Calls the net once, in eval mode, and uses its last layer with at least 4 rows and columns. Raises
    ConfigError if the net has no such layer, as with a transformer over a sequence of patches, or a ResNet and images
    below about 100 pixels.
    """
    # the output of the last layer with enough rows and columns; cleared when a later layer outputs a sequence
    found: list[Tensor] = []

    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        if not isinstance(output, Tensor):
            return
        if output.ndim == 4 and _has_extent(output.shape):
            found[:] = [output]
        elif output.ndim == 3:
            found.clear()

    hooks = [module.register_forward_hook(look) for module in net.modules() if module is not net]
    try:
        with evaluating(net), torch.enable_grad():
            logits = net(images.detach().requires_grad_())
            if not found or not found[0].requires_grad:
                what = (
                    f"class activation maps need a layer whose output is at least {LEAST_SIDE} × {LEAST_SIDE}, "
                    f"but {type(net).__name__} has none at this image size"
                )
                raise ConfigError(Mistake(what, ("maps",), (setting("maps=false", aim="with report"),)))
            (gradient,) = torch.autograd.grad(logits.gather(1, classes[:, None]).sum(), found[0])
    finally:
        for hook in hooks:
            hook.remove()
    # Dimensions 1 and 2 are rows and columns, and the channels are last, if only these two are equal, as in Swin.
    side_by_side = found[0].shape[1] == found[0].shape[2] != found[0].shape[3]
    maps = (gradient.clamp(min=0) * found[0]).sum(3 if side_by_side else 1).clamp(min=0).detach().float()
    maps = F.interpolate(maps[:, None], images.shape[2:], mode="bilinear", align_corners=False)[:, 0]
    return maps / maps.amax((1, 2), keepdim=True).clamp(min=torch.finfo(maps.dtype).tiny)


def _has_extent(shape: torch.Size) -> bool:
    """Return whether a layer's output has at least LEAST_SIDE rows and columns. shape: (B, C, H, W), or (B, H, W, C) if
    the channels are last."""
    return shape[2] >= LEAST_SIDE and (shape[3] >= LEAST_SIDE if shape[2] == shape[3] else shape[1] == shape[2])


def overlay(image: Tensor, activation: Tensor) -> Tensor:
    """Draw the colours of a map over an image. image, and the result: uint8 (3, H, W). activation: (H, W) in 0..1."""
    from matplotlib import colormaps

    colours = torch.as_tensor(colormaps["turbo"](activation.cpu().numpy())[..., :3]).permute(2, 0, 1)
    share = STRENGTH * activation.cpu()
    return (image.cpu() * (1 - share) + 255 * colours * share).round().to(torch.uint8)
