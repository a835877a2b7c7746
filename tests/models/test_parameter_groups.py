from typing import Any

import pytest
import torch
import torchvision

from imagenet_ddp.config.schema.learning import OptimConfig
from imagenet_ddp.models.factory import create_model
from imagenet_ddp.models.head import head_names, is_in_head
from imagenet_ddp.models.parameter_groups import block_depths, parameter_groups

NAMES = {"resnet18": 64, "vit_b_16": 224, "convnext_tiny": 64, "swin_t": 64, "squeezenet1_1": 64, "densenet121": 64}
HEADS = {"resnet18": "fc", "vit_b_16": "heads.head", "convnext_tiny": "classifier.2", "squeezenet1_1": "classifier.1"}


def groups(net: torch.nn.Module, scaled_lr: float, head: tuple[str, ...], **keys: Any) -> list[dict[str, Any]]:
    return parameter_groups(net, OptimConfig(**keys), scaled_lr, head)


def meta(name: str, num_classes: int = 7) -> torch.nn.Module:
    with torch.device("meta"):
        return create_model(name, num_classes, 0, NAMES[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_head_is_found_and_every_parameter_is_in_one_group(name: str):
    net = meta(name)
    head = head_names(net, 7)
    assert len(head) == 1 and head[0] == HEADS.get(name, head[0])
    made = groups(net, 0.3, head, lr=0.1, lr_head=0.4, layer_decay=0.5, no_decay_on=["norm", "bias", "embedding"])
    found = [parameter for group in made for parameter in group["params"]]
    assert len(found) == len({id(parameter) for parameter in found}) == len(list(net.parameters()))
    rates = {id(parameter): group["lr"] for group in made for parameter in group["params"]}
    named = dict(net.named_parameters())
    assert [rates[id(p)] for n, p in named.items() if is_in_head(n, head)] == pytest.approx([0.3 * 4] * 2)
    depths, num_blocks = block_depths([n for n in named if not is_in_head(n, head)])
    assert num_blocks >= 5
    for n, depth in depths.items():
        assert rates[id(named[n])] == pytest.approx(0.3 * 0.5 ** (num_blocks - depth))
    in_order = [depths[n] for n in named if n in depths and "token" not in n and "pos" not in n]
    assert in_order == sorted(in_order)


def test_the_blocks_of_a_resnet():
    names = [name for name, _ in meta("resnet18").named_parameters() if not name.startswith("fc.")]
    depths, num_blocks = block_depths(names)
    assert num_blocks == 9  # the stem and two blocks in each of four layers
    assert depths["conv1.weight"] == depths["bn1.bias"] == 0
    assert (depths["layer1.0.conv1.weight"], depths["layer4.1.bn2.weight"]) == (1, 8)
    assert depths["layer2.0.downsample.0.weight"] == 3


def of_timm(name: str) -> torch.nn.Module:
    with torch.device("meta"):
        return pytest.importorskip("timm").create_model(name, num_classes=7)


OF_TIMM = ("convnext_atto", "cait_xxs24_224", "beit_base_patch16_224", "swinv2_tiny_window8_256", "levit_128s",
           "resnet18", "regnety_002", "vit_medium_patch16_reg4_gap_256")  # fmt: skip


@pytest.mark.parametrize("name", OF_TIMM)
def test_weight_decay_and_layers_are_timms(name: str):
    net = of_timm(name)
    from timm.optim import param_groups_layer_decay, param_groups_weight_decay

    names = {id(parameter): key for key, parameter in net.named_parameters()}
    patterns = getattr(net, "no_weight_decay", set)()
    theirs = param_groups_weight_decay(net, 0.05, no_weight_decay_list=patterns)
    made = groups(net, 0.1, (), weight_decay=0.05, no_decay_on=["norm", "bias"])
    without = [
        {names[id(p)] for group in some if group.get("weight_decay") == 0 for p in group["params"]}
        for some in (made, theirs)
    ]
    assert without[0] == without[1]
    if hasattr(net, "group_matcher"):
        scaled = param_groups_layer_decay(net, 0.05, layer_decay=0.7)
        expected = {names[id(p)]: group["lr_scale"] for group in scaled for p in group["params"]}
        found = {names[id(p)]: group["lr"] for group in groups(net, 1.0, (), lr=1.0, layer_decay=0.7)
                 for p in group["params"]}  # fmt: skip
        assert found == pytest.approx(expected)


@pytest.mark.parametrize("kinds", [["norm"], ["norm", "bias", "embedding"]], ids=",".join)
@pytest.mark.parametrize("name", ["resnet18", "vit_b_16", "convnext_tiny"])
def test_what_has_no_weight_decay_is_what_torchvisions_references_leave_out(name: str, kinds: list[str]):
    """references/classification/utils.py, set_weight_decay, with 0 for norms, as in its newer recipe, or for norms,
    biases and embeddings."""
    net = meta(name)
    # unlike torchvision, LayerScale counts as a norm, as in the recipe of ConvNeXt's authors
    norms = (torch.nn.modules.batchnorm._BatchNorm, torch.nn.LayerNorm, torchvision.models.convnext.LayerNorm2d)
    expected = set()
    for prefix, module in net.named_modules():
        for key, _ in module.named_parameters(prefix, recurse=False):
            last = key.rpartition(".")[2]
            # torchvision leaves out only those named bias, timm in_proj_bias too
            others = last.endswith("bias") or last in ("class_token", "pos_embedding")
            if isinstance(module, norms) or last == "layer_scale" or (others and len(kinds) > 1):
                expected.add(key)
    made = groups(net, 0.1, ("fc",), weight_decay=0.05, no_decay_on=kinds)
    names = {id(parameter): key for key, parameter in net.named_parameters()}
    found = {names[id(p)] for group in made if group.get("weight_decay") == 0 for p in group["params"]}
    assert found == expected
    [plain] = groups(net, 0.1, ("fc",), weight_decay=0.05)
    assert "weight_decay" not in plain  # the optimizer's own


def test_frozen_parameters_are_left_out():
    net = meta("resnet18")
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name.startswith("fc."))
    [group] = groups(net, 0.1, ("fc",), lr_head=0.2)
    assert [tuple(parameter.shape) for parameter in group["params"]] == [(7, 512), (7,)]
