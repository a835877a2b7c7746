import math
from types import SimpleNamespace

import pytest
import torch
import torchvision
from helpers.plans import plan_of

from imagenet_ddp.distributed import precision
from imagenet_ddp.distributed.validate import MIN_BF16_PIXELS


def test_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: True)
    assert precision.choose_precision("auto", "cpu", {"image_size": 17}, lambda: 0.0)[0] == "bf16-mixed"
    for tiny in ({"image_size": 16}, {"image_size": 64, "train_size": 48, "progressive_start": 16}):
        chosen, reason = precision.choose_precision("auto", "cpu", tiny, lambda: 0.0)
        assert chosen == "32-true" and "images this small" in reason
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: False)
    assert precision.choose_precision("auto", "cpu", {"image_size": 64}, lambda: 0.0)[0] == "32-true"
    assert precision.choose_precision("16-mixed", "cpu", {"image_size": 16}, lambda: 0.0) == ("16-mixed", "as set")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("model.name=resnet18",), "bf16-mixed"),
        (("model.name=resnext50_32x4d",), "bf16-mixed"),  # groups, but not of one channel
        (("model.name=vit_b_16",), "bf16-mixed"),
        (("model.name=convnext_tiny",), "bf16-mixed"),  # its linear layers count for more
        (("model.name=mobilenet_v3_small",), "32-true"),
        (("model.name=shufflenet_v2_x1_0",), "32-true"),
        (("model.name=efficientnet_lite0", "model.library=timm"), "32-true"),
        (("model.name=mobilenet_v3_small", "trainer.precision=bf16-mixed"), "bf16-mixed"),
        (("model._target_=torch.nn.Linear", "allow_targets=[torch]"), "bf16-mixed"),
    ],
)
def test_depthwise_convolutions_on_a_cpu(
    options: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "model.library=timm" in options:
        pytest.importorskip("timm")
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: True)
    value, reason = plan_of("data.image_size=64", *options).precision
    assert value == expected
    assert ("depthwise" in reason) == (value == "32-true")


@pytest.mark.parametrize(
    ("name", "major", "expected"),
    [
        ("Tesla V100-SXM2-16GB", 7, "16-mixed"),
        ("Tesla T4", 7, "16-mixed"),
        ("NVIDIA GeForce RTX 2080 Ti", 7, "16-mixed"),
        ("NVIDIA GeForce GTX 1660", 7, "32-true"),
        ("Tesla P100-PCIE-16GB", 6, "32-true"),
        ("NVIDIA A100", 8, "bf16-mixed"),
    ],
)
def test_precision_of_gpus(name: str, major: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: SimpleNamespace(name=name, major=major))
    monkeypatch.setattr(torch.version, "hip", None)
    value, reason = precision.choose_precision("auto", "cuda", {"image_size": 224}, pytest.fail, 0)
    assert value == expected and name in reason
    assert precision.choose_precision("32", "cuda", {"image_size": 224}, pytest.fail, 0) == ("32-true", "as set")


@pytest.mark.parametrize(
    ("asked", "name"),
    [(64, "64-true"), ("32", "32-true"), (16, "16-mixed"), ("16", "16-mixed"), ("bf16", "bf16-mixed")],
)
def test_short_names_of_precisions_are_written_out(asked: int | str, name: str) -> None:
    """The choice of a fused optimizer, and what is measured, ask for the long ones."""
    assert precision.choose_precision(asked, "cpu", {"image_size": 64}, lambda: 0.0) == (name, "as set")


def test_gradients_in_bf16_at_the_smallest_size() -> None:
    """Of a ResNet they are those of 32 bits, rounded. Smaller, they may have what the memory held before."""
    torch.manual_seed(0)
    net = torchvision.models.resnet18(num_classes=10).eval()
    weights = dict(net.named_parameters())
    images = torch.randn(8, 3, MIN_BF16_PIXELS, MIN_BF16_PIXELS)

    def gradients(enabled: bool) -> torch.Tensor:
        net.zero_grad()
        _unused = [torch.full_like(parameter, math.nan) for parameter in net.parameters()]
        del _unused  # what is not initialised now tends to be nan
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            net(images).float().square().mean().backward()
        return torch.cat([parameter.grad.flatten() for parameter in net.parameters() if parameter.grad is not None])

    wanted = gradients(False)
    for _ in range(5):
        got = gradients(True)
        assert got.isfinite().all()
        last, strided = weights["layer4.1.conv2.weight"].grad, weights["layer4.0.conv1.weight"].grad
        assert last is not None and strided is not None
        last[:, :, 1, 1] = 0  # all others read padding only
        assert not last.any() and not strided[:, :, 0].any() and not strided[:, :, :, 0].any()
        assert torch.cosine_similarity(got, wanted, dim=0) > 0.98
