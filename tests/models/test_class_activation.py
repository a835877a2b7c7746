"""Class activation maps point at what a net looks at."""

import pytest
import torch
import torchvision
from torch import nn

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.class_activation import class_activation_maps


def red_or_blue() -> nn.Module:
    """A net whose class 0 is as probable as the image is red, and class 1 as it is blue."""
    conv, head = nn.Conv2d(3, 2, 1, bias=False), nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([[1.0, -1, -1], [-1, -1, 1]]).view(2, 3, 1, 1))
        head.weight.copy_(torch.eye(2))
    return nn.Sequential(nn.Sequential(conv, nn.ReLU(inplace=True)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def test_the_map_is_where_the_class_is():
    image = torch.zeros(1, 3, 16, 16)
    image[0, 0, :8, :8] = 1  # red above, on the left
    image[0, 2, 8:, 8:] = 1
    net = red_or_blue().train()
    red, blue = class_activation_maps(net, image.repeat(2, 1, 1, 1), torch.tensor([0, 1]))
    assert red.shape == (16, 16)
    assert (red[:8, :8] == 1).all() and red.sum() == 64
    assert (blue[8:, 8:] == 1).all() and blue.sum() == 64
    assert net.training, "left as it was"
    assert all(parameter.grad is None for parameter in net.parameters())
    none = class_activation_maps(net, torch.zeros(1, 3, 16, 16), torch.tensor([0]))
    assert none.sum() == 0


@pytest.mark.parametrize("name", ["resnet18", "convnext_tiny", "swin_t"])
def test_common_nets(name: str):
    torch.manual_seed(0)
    net = torchvision.models.get_model(name, weights=None, num_classes=3)
    with torch.inference_mode(False):
        maps = class_activation_maps(net, torch.randn(2, 3, 64, 64), torch.tensor([0, 2]))
    assert maps.shape == (2, 64, 64) and not maps.requires_grad
    assert maps.min() >= 0 and maps.max() == 1


def test_a_net_of_patches_is_refused():
    net = torchvision.models.VisionTransformer(64, 32, 1, 2, 8, 8, num_classes=3)
    with pytest.raises(ConfigError, match="VisionTransformer has none"):
        class_activation_maps(net, torch.randn(1, 3, 64, 64), torch.tensor([0]))
