import pytest
import torch
from torch import nn

from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.batch_norm import require_batch

TRAINED, FROZEN = ModelConfig(), ModelConfig(batch_norm="frozen")


def net(stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize(("stride", "images", "size"), [(8, 1, 8), (8, 2, 8), (8, 1, 16), (4, 1, 8)])
def test_a_batch_is_refused_exactly_if_torch_would_fail(stride: int, images: int, size: int):
    tried = net(stride)
    before = {name: value.clone() for name, value in tried.state_dict().items()}
    try:
        net(stride)(torch.zeros(images, 3, size, size))
        fails = False
    except ValueError:
        fails = True
    if fails:
        with pytest.raises(ConfigError, match=r"at least 2 images of 8 pixels .* Hint: set data\.batch_size=2\."):
            require_batch(TRAINED, tried, images, size)
    else:
        require_batch(TRAINED, tried, images, size)
    require_batch(FROZEN, tried, images, size)
    assert tried.training and all(torch.equal(value, before[name]) for name, value in tried.state_dict().items())
