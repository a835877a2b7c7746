"""The layers that compute the logits: which they are, how they start on other classes than those of the weights, and
what they receive."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.config.schema.losses import Bce
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.factory import create_model
from imagenet_ddp.models.head import compute_features, has_features, head_names, require_features
from imagenet_ddp.models.losses import Loss
from imagenet_ddp.models.weights.load import load_weights_into
from imagenet_ddp.models.weights.pretrained import find_weights

OLD, NEW, BATCH = 12, 7, 4
# Nets whose heads differ in kind, by image size: a linear layer, a convolution before a ReLU, one or several heads that
# timm names, with and without batch norm.
NETS = {
    ("torchvision", 64): "resnet18 squeezenet1_1",
    ("timm", 32): "tf_efficientnet_lite0 deit_tiny_distilled_patch16_224",
    ("timm", 96): "mobilenetv3_small_050 repvit_m0_9",
    ("timm", 224): "levit_128s",
    ("timm", 240): "crossvit_tiny_240",
}
SEVERAL = {"deit_tiny_distilled_patch16_224", "levit_128s", "crossvit_tiny_240", "repvit_m0_9"}
CASES = [
    pytest.param(library, name, size, id=f"{library}-{name}", marks=[pytest.mark.slow(2)] if size > 64 else [])
    for (library, size), names in NETS.items()
    for name in names.split()
]


def fine_tuned(library: str, name: str, size: int, folder: Path) -> tuple[torch.nn.Module, str]:
    """A net of NEW classes that has loaded weights of OLD classes."""
    model = ModelConfig(name=name, library=library)
    torch.save(create_model(model, OLD, 1, size).state_dict(), folder / "weights.pt")
    net = create_model(model, NEW, 2, size)
    weights = find_weights("model.weights", str(folder / "weights.pt"), library, name)
    sentence, head_fits = load_weights_into(net, weights, head_names(net, NEW), [*"abcdefg"])
    assert not head_fits
    return net, sentence


@pytest.mark.parametrize(("library", "name", "size"), CASES)
def test_a_new_head_starts_at_the_loss_of_guessing_and_all_of_it_learns(
    library: str, name: str, size: int, tmp_path: Path
):
    net, sentence = fine_tuned(library, name, size, tmp_path)
    heads = head_names(net, NEW)
    assert f"{' and '.join(heads)} {'is' if len(heads) == 1 else 'are'} new" in sentence
    assert (len(heads) > 1) == (name in SEVERAL)
    torch.manual_seed(0)
    logits, target = net.train()(torch.randn(BATCH, 3, size, size)), torch.arange(BATCH)
    loss = F.cross_entropy(logits, target)
    assert loss.item() == pytest.approx(math.log(NEW), rel=0.02)
    bce = Loss(Bce(), NEW)(logits, target, reduction="mean")
    assert bce.item() == pytest.approx(math.log(2), rel=0.02)
    named = [(f"{head}.{key}", each) for head in heads for key, each in net.get_submodule(head).named_parameters()]
    # only the heads' gradients: torch 2.15 damages the heap in the backward pass of some nets in channels_last on a CPU
    gradients = torch.autograd.grad(loss, [parameter for _, parameter in named], allow_unused=True)
    for (key, _), gradient in zip(named, gradients, strict=True):
        assert gradient is not None and gradient.abs().max() > 0, f"{key} never learns"


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("torchvision", "resnet18"),
        pytest.param("torchvision", "vit_b_16", marks=pytest.mark.slow(2)),
        ("timm", "mobilenetv3_small_050"),
    ],
)
def test_the_features_are_the_input_of_the_last_layer(library: str, name: str):
    keys = ModelConfig(name=name, library=library)
    net = create_model(keys, 9, 1, 64)
    heads = head_names(net, 9)
    net.train()
    require_features(net, name, heads, 64)
    assert all(module.training for module in net.modules())
    net.eval()
    images = torch.randn(2, 3, 64, 64)
    features, logits = compute_features(net, heads[0], images)
    assert torch.equal(net.get_submodule(heads[0])(features), net(images)) and torch.equal(logits, net(images))
    assert not net.get_submodule(heads[0])._forward_pre_hooks


@torch.no_grad()
def test_the_features_of_a_compiled_net_are_computed_eagerly():
    """In compiled code of a call without the hook, it would be missing."""
    net, images, compiled = create_model("resnet18", 3, 0, 32).eval(), torch.zeros(2, 3, 32, 32), list[object]()
    net.compile(backend=lambda graph, _: compiled.append(graph) or graph.forward)
    logits, num_compiled = net(images), len(compiled)
    features, again = compute_features(net, "fc", images)
    assert torch.equal(net.fc(features), logits) and torch.equal(again, logits)  # type: ignore[operator]
    assert len(compiled) == num_compiled > 0


@pytest.mark.parametrize(
    ("library", "name"),
    [("torchvision", "squeezenet1_1"), ("timm", "deit_tiny_distilled_patch16_224")],
)
def test_other_nets_are_refused(library: str, name: str):
    keys = ModelConfig(name=name, library=library)
    net = create_model(keys, 9, 1, 224)
    with pytest.raises(ConfigError, match=f"ends in one linear layer, but {name} does not. Hint: set model.head=new"):
        require_features(net, name, head_names(net, 9), 224)


@pytest.mark.parametrize("way", ["two layers", "another layer", "patches", "cap"])
def test_a_net_whose_output_is_not_that_of_its_last_layer_has_no_features(way: str):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.other, self.head = torch.nn.Linear(3, 9), torch.nn.Linear(3, 9)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            patches = images.flatten(2).mT
            features = patches.mean(1)
            match way:
                case "two layers":
                    return self.head(features) + self.other(features)
                case "another layer":
                    return self.other(features)
                case "patches":
                    return self.head(patches).mean(1)
                case _:
                    return self.head(features).tanh()

    assert head_names(Net(), 9) == ("head",)
    assert not has_features(Net(), ("head",), 32)


@pytest.mark.parametrize(("library", "name", "size"), CASES)
def test_known_classes_keep_their_rows(library: str, name: str, size: int, tmp_path: Path):
    """Of a net with one new class, in another order: before training, the logits of the known classes are those of the
    old net, and the new one starts at nearly 0."""
    model = ModelConfig(name=name, library=library)
    before = create_model(model, 3, 1, size).eval()
    torch.save({"state_dict": before.state_dict(), "classes": ["wolf", "cat", "élan"]}, tmp_path / "weights.pt")
    weights = replace(
        find_weights("model.weights", str(tmp_path / "weights.pt"), library, name),
        contents={"classes": ["wolf", "cat", "élan"]},
    )
    classes, images = ["cat", "dog", "wolf", "élan"], torch.randn(2, 3, size, size)
    net = create_model(model, 4, 2, size).eval()
    heads = head_names(net, 4)
    sentence, head_fits = load_weights_into(net, weights, heads, classes)
    assert not head_fits
    assert f"keep{'s' * (len(heads) == 1)} the rows of cat, élan, wolf, and " in sentence
    assert sentence.partition(";")[2].rstrip(".").endswith("new for dog")
    with torch.no_grad():
        old, new = before(images), net(images)
    torch.testing.assert_close(new[:, [0, 2, 3]], old[:, [1, 0, 2]])
    assert new[:, 1].abs().max() < 0.1 * old.abs().max()

    subset = create_model(model, 2, 2, size).eval()
    sentence, head_fits = load_weights_into(subset, weights, head_names(subset, 2), ["cat", "wolf"])
    assert head_fits and "new" not in sentence
    with torch.no_grad():
        torch.testing.assert_close(subset(images), old[:, [1, 0]])


def test_a_head_that_is_fitted_anew_keeps_no_rows(tmp_path: Path):
    model = ModelConfig(name="resnet18", library="torchvision")
    torch.save(create_model(model, 2, 1, 64).state_dict(), tmp_path / "weights.pt")
    weights = replace(
        find_weights("model.weights", str(tmp_path / "weights.pt"), "torchvision", "resnet18"),
        contents={"classes": ["cat", "dog"]},
    )
    net = create_model(model, 3, 2, 64)
    why = "model.head=regression fits it to all classes"
    sentence, head_fits = load_weights_into(net, weights, ("fc",), ["cat", "dog", "eel"], why)
    assert not head_fits and f"fc is new ({why})" in sentence
    assert net.get_submodule("fc").weight.abs().max() < 1e-3  # type: ignore[operator]
