"""The logistic regression that a last layer starts from."""

import pytest
import torch
import torch.nn.functional as F

from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.factory import create_model
from imagenet_ddp.models.features import L2, compute_features, fit_regression, minimise, require_features
from imagenet_ddp.models.head import head_names

pytestmark = pytest.mark.usefixtures("one_thread")


def blobs(num: int, size: int, spread: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of 4 classes around random centres, of very different scales, one of them constant."""
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn(4, size, generator=generator)
    targets = torch.arange(num) % 4
    features = centres[targets] + spread * torch.randn(num, size, generator=generator)
    features = features * torch.logspace(-2, 2, size) + 5
    features[:, 1] = 7
    return features, targets


@pytest.mark.parametrize("l2", [L2[0], L2[-1]])
@pytest.mark.parametrize(("num", "size"), [(200, 12), (40, 60)])
def test_the_gradient_of_the_objective_is_zero(num: int, size: int, l2: float):
    """By definition, in float64: mean cross entropy + l2 / 2 · |weights of the standardised features|²."""
    features, targets = blobs(num, size, 1.5)
    weight, bias = (each.double() for each in minimise(features.double(), targets, 4, l2))
    features = features.double()
    std = features.std(0)
    std = std.clamp_min(0.01 * std.mean())
    scaled = (features - features.mean(0)) / std
    # the same function in terms of the standardised features
    own = (weight * std).requires_grad_()
    own_bias = (bias + weight @ features.mean(0)).requires_grad_()
    objective = F.cross_entropy(F.linear(scaled, own, own_bias), targets) + l2 / 2 * own.square().sum()
    for gradient in torch.autograd.grad(objective, (own, own_bias)):
        assert gradient.abs().max() < 1e-4
    torch.testing.assert_close(
        F.linear(features, weight, bias), F.linear(scaled, own, own_bias).detach(), rtol=1e-3, atol=1e-2
    )


def test_the_penalty_is_that_with_the_lowest_loss_on_the_held_out_tenth():
    """Well separated classes need little of it, noise needs much."""
    features, targets = blobs(300, 30, 0.3)
    found = fit_regression(features, targets, 4, seed=1)
    assert found.l2 < 0.1 and (found.accuracy, found.num_held_out) == (1.0, 30)
    assert (F.linear(features, found.weight, found.bias).argmax(1) == targets).all()
    of_no_class = torch.randn(300, 30, generator=torch.Generator().manual_seed(0))
    noise = fit_regression(of_no_class, targets, 4, seed=1)
    assert noise.l2 == max(L2) and noise.accuracy < 0.6


@pytest.mark.parametrize(
    ("library", "name"),
    [("torchvision", "resnet18"), ("torchvision", "vit_b_16"), ("timm", "mobilenetv3_small_050")],
)
def test_the_features_are_the_input_of_the_last_layer(library: str, name: str):
    keys = ModelConfig(name=name, library=library)
    net = create_model(keys, 9, 1, 224)
    heads = head_names(net, 9)
    net.train()
    require_features(net, name, heads, 224)
    assert all(module.training for module in net.modules())
    net.eval()
    images = torch.randn(2, 3, 224, 224)
    features, logits = compute_features(net, heads[0], images)
    assert torch.equal(net.get_submodule(heads[0])(features), net(images)) and torch.equal(logits, net(images))
    assert not net.get_submodule(heads[0])._forward_pre_hooks


@pytest.mark.parametrize(
    ("library", "name"),
    [("torchvision", "squeezenet1_1"), ("timm", "deit_tiny_distilled_patch16_224")],
)
def test_other_nets_are_refused(library: str, name: str):
    keys = ModelConfig(name=name, library=library)
    net = create_model(keys, 9, 1, 224)
    with pytest.raises(ConfigError, match=f"ends in one linear layer, but {name} does not. Hint: set model.head=new"):
        require_features(net, name, head_names(net, 9), 224)
