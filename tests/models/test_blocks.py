"""Repeated blocks, and their activations computed again."""

import copy
from collections import Counter

import pytest
import torch
import torchvision
from torch import Tensor, nn

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.blocks import checkpoint_activations, repeated_blocks
from imagenet_ddp.models.factory import create_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet50", {"Bottleneck": 16}),
        ("vit_b_16", {"EncoderBlock": 12}),
        ("convnext_tiny", {"CNBlock": 18}),
        ("vgg11", {}),
    ],
)
def test_blocks_are_the_outermost_of_a_repeated_class(name: str, expected: dict[str, int]):
    with torch.device("meta"):
        net = torchvision.models.get_model(name)
    assert Counter(type(block).__name__ for block in repeated_blocks(net)) == expected


def step(net: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    """Return gradients, buffers, and MiB kept for the backward pass, of two steps with dropout."""
    kept = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel() * tensor.element_size() / 2**20)
        return tensor

    for seed in (0, 1):
        torch.manual_seed(seed)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = net(torch.randn(4, 3, 32, 32)).square().mean()
        loss.backward()
    gradients = {name: parameter.grad for name, parameter in net.named_parameters() if parameter.grad is not None}
    return gradients, dict(net.named_buffers()), sum(kept)


@pytest.mark.parametrize(("name", "args"), [("resnet18", {}), ("efficientnet_b0", {})])
def test_gradients_and_statistics_stay_and_memory_falls(name: str, args: dict):
    torch.manual_seed(0)
    plain = torchvision.models.get_model(name, num_classes=5, **args)
    other = copy.deepcopy(plain)
    assert checkpoint_activations(other)
    other = copy.deepcopy(other)  # as the average of the weights does
    assert len(repeated_blocks(other)) == len(repeated_blocks(plain))  # for compile.regions
    (gradients, buffers, most), (same, same_buffers, least) = step(plain), step(other)
    assert plain.state_dict().keys() == other.state_dict().keys() and len(gradients) == len(same)
    for before, after in ((gradients, same), (buffers, same_buffers)):
        assert all(torch.equal(before[key], after[key]) for key in before)
    assert least < most / 5
    # nothing is computed again where there is no backward pass
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(plain.eval()(images), other.eval()(images))


def test_a_net_without_blocks_is_refused():

    from imagenet_ddp.config.schema.learning import ModelConfig

    keys = ModelConfig(name="vgg11", activation_checkpointing=True)
    with pytest.raises(ConfigError, match="needs a net with blocks of the same class") as caught:
        create_model(keys, 2, image_size=32)
    assert "Hint: set model.activation_checkpointing=false." in str(caught.value)
