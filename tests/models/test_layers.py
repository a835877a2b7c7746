"""Layers and wrappers that change how a net computes."""

from typing import Any

import pytest
import torch
from torch import nn

from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.factory import create_model
from imagenet_ddp.models.layers import (
    ClassSubset,
    add_blur_pool,
    average_views,
    oriented,
)


@pytest.mark.parametrize("key", ["activation_checkpointing", "blur_pool"])
def test_a_net_without_what_a_key_needs_is_refused(key: str):
    model: dict[str, Any] = {"name": "vgg11", key: True}
    error = pytest.raises(ConfigError, match=rf"^model\.{key} needs a .*Hint: set model\.")
    with torch.device("meta"), error:  # without its 130 million weights
        create_model(ModelConfig(**model), 2, image_size=32)


def test_a_strided_convolution_sees_the_blurred_image():
    conv, images = nn.Conv2d(16, 4, 3, 2, 1, bias=False), torch.randn(2, 16, 8, 8)
    net = nn.Sequential(conv)
    kernel = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]).expand(16, 1, 3, 3) / 16
    blurred = nn.functional.conv2d(images, kernel, padding=1, groups=16)
    assert add_blur_pool(net) == 1 and [*net.state_dict()] == ["0.weight"]
    torch.testing.assert_close(net(images), nn.functional.conv2d(blurred, conv.weight, stride=2, padding=1))


def test_a_subset_of_the_classes():
    net = ClassSubset(nn.Identity(), [2, 0], 4)
    probabilities = net(torch.tensor([[1.0, 5.0, 2.0, 7.0]])).softmax(1)[0]
    torch.testing.assert_close(probabilities[[0, 2]], torch.tensor([1.0, 2.0]).softmax(0))
    assert probabilities[[1, 3]].tolist() == [0, 0] and not net.state_dict()


@pytest.mark.parametrize(
    ("views", "invariant", "turned"),
    [(2, [(3,)], [(2,)]), (4, [(3,), (2,), (2, 3)], []), (8, [(3,), (2,), (2, 3)], [])],
)
def test_the_mean_is_the_same_for_each_view(views: int, invariant: list, turned: list):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 5 * 5, 6))
    images = torch.randn(2, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    found = average_views(net, images, views)
    torch.testing.assert_close(found, torch.stack([net(each) for each in oriented(images, views)]).mean(0))
    assert len({tuple(each.flatten().tolist()) for each in oriented(images, views)}) == views
    for axes in invariant:
        torch.testing.assert_close(found, average_views(net, images.flip(axes), views))
    for axes in turned:
        assert not torch.allclose(found, average_views(net, images.flip(axes), views))
    quarter = average_views(net, images.rot90(1, (2, 3)), views)
    assert torch.allclose(found, quarter, atol=1e-6) == (views == 8)
    assert torch.equal(average_views(net, images, 1), net(images))
    seen: list[torch.Tensor] = []
    average_views(lambda each: (seen.append(each), net(each))[1], images, views)
    assert len(seen) == views and torch.equal(seen[-1], images), "of which evaluate and features keep what a layer gets"
