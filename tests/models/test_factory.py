import sys
from typing import Any

import pytest
import torch
from torch import nn

from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.factory import create_model, of_size, require_batch, require_image_size
from imagenet_ddp.runs.checkpoint_file import load_weights

# Nets that are made in different ways, with the side of their images in pixels.
FAMILIES = {"googlenet": 64, "inception_v3": 299, "mnasnet0_5": 64, "resnet18": 64, "swin_t": 64, "vit_b_16": 224}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_gives_logits_of_the_right_width(name: str):
    with torch.device("meta"):  # shapes only
        net = create_model(ModelConfig(name=name), 7, 0).train()
        logits = net(torch.empty(2, 3, FAMILIES[name], FAMILIES[name]))
    assert isinstance(logits, torch.Tensor)  # not the logits among auxiliary ones
    assert logits.shape == (2, 7)


@pytest.mark.parametrize(
    ("library", "name", "args"),
    [
        ("torchvision", "resnet50", {"width_per_group": 4096}),
        ("torchvision", "resnet50", {"width_per_group": 10**9}),
        ("timm", "test_vit", {"embed_dim": 3072}),
    ],
)
def test_a_file_of_a_stranger_has_the_weights_of_its_net(library: str, name: str, args: dict[str, Any]):
    """Which takes as much memory as model.args say, 10 GB and 1.3 EB here, whatever the size of the file."""
    plain, model = (ModelConfig(name=name, library=library, args=each) for each in ({}, args))
    stored = create_model(plain, 3, image_size=160).state_dict()
    with of_size(plain, stored, "best.ckpt"):
        create_model(plain, 3, image_size=160)
    refused = pytest.raises(
        ConfigError, match=r"best\.ckpt must hold the weights of its net, but has [\d,]* values for"
    )
    with refused, of_size(model, stored, "best.ckpt"):
        create_model(model, 3, image_size=160)


def test_weights_load_without_the_versions_of_the_layers_formats():
    """MNASNet refuses a state dict without them, and a checkpoint's tensors come as a plain dict."""
    net, other = (create_model(ModelConfig(name="mnasnet0_5"), 3, seed) for seed in (0, 1))
    load_weights(other, dict(net.state_dict()), "best.ckpt")
    assert all(torch.equal(a, b) for a, b in zip(weights(net), weights(other), strict=True))
    with pytest.raises(ConfigError, match="Missing key"):
        load_weights(other, dict(list(net.state_dict().items())[1:]), "best.ckpt")


def weights(net: nn.Module) -> list[torch.Tensor]:
    return list(net.state_dict().values())


def test_weights_hang_on_the_seed_alone_and_leave_torchs_generator_as_it_was():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = create_model(ModelConfig(name="mobilenet_v3_small"), 5, 3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = create_model(ModelConfig(name="mobilenet_v3_small"), 5, 3)
    other = create_model(ModelConfig(name="mobilenet_v3_small"), 5, 4)
    assert all(torch.equal(a, b) for a, b in zip(weights(first), weights(again), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights(first), weights(other), strict=True))


def test_arguments_and_the_memory_format_reach_the_net():
    net = create_model(ModelConfig(name="mobilenet_v3_small", args={"dropout": 0.75}), 5, 0)
    assert 0.75 in [layer.p for layer in net.modules() if isinstance(layer, nn.Dropout)]
    for channels_last in (False, True):
        kernel = create_model(ModelConfig(channels_last=channels_last), 5, 0).get_parameter("layer1.0.conv1.weight")
        assert kernel.is_contiguous(memory_format=torch.channels_last) == channels_last


@pytest.mark.parametrize(
    "name",
    ["resnet18.no_such_weights", "resnet18x", "timm/resnet18", "hf-hub:timm/resnet18", 'resnet18#"); print("'],
)
def test_a_name_that_is_not_one_of_timms_is_refused(name: str):
    """The last one was taken for resnet18 by versions of timm, and export wrote it into a program."""
    with pytest.raises(ConfigError, match=r"model\.name must be a model of timm.*Hint: set"):
        create_model(ModelConfig(name=name, library="timm"), 3, 0, 32)


class OwnNet(nn.Module):
    def __init__(self, num_classes: int, width: int):
        super().__init__()
        self.head = nn.Linear(width, num_classes)


def test_a_net_of_ones_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "own_nets", sys.modules[__name__])
    keys = ModelConfig(name="mine", _target_="own_nets.OwnNet", args={"width": 11})
    net = create_model(keys, 4, 3)
    assert isinstance(net, OwnNet)
    assert net.head.weight.shape == (4, 11)
    assert torch.equal(net.head.weight, create_model(keys, 4, 3).get_parameter("head.weight"))


def test_a_net_of_one_size_refuses_smaller_images_in_training():
    with torch.device("meta"):
        vit = create_model(ModelConfig(name="vit_b_16"), 3, 0, 64)
        require_image_size(vit, "vit_b_16", "data.train_size", 64)
        refused = r"data.train_size=32 pixels, but does not .*Hint: set data.train_size=null"
        with pytest.raises(ConfigError, match=refused):
            require_image_size(vit, "vit_b_16", "data.train_size", 32)
    require_image_size(create_model(ModelConfig(), 3, 0, 64), "resnet18", "data.progressive_start", 32)


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
            require_batch(ModelConfig(), tried, images, size)
    else:
        require_batch(ModelConfig(), tried, images, size)
    require_batch(ModelConfig(batch_norm="frozen"), tried, images, size)
    assert tried.training and all(torch.equal(value, before[name]) for name, value in tried.state_dict().items())
