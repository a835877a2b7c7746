"""Devices, threads and precision: the choice and its reason."""

import math
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torchvision
from helpers.plans import plan_of

from imagenet_ddp.cli.check_launch import MIN_BF16_PIXELS
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.trainer import TrainerConfig
from imagenet_ddp.distributed.compare_members import shared_gpus
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch import devices


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four GPUs, as far as counting goes."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("asked", "found", "number"),
    [("auto", 4, 4), ("2", 2, 2), ("0,3", [0, 3], 2), ("3,", [3], 1), (-1, 4, 4)],
)
def test_gpus(asked: object, found: object, number: int) -> None:
    local = devices.local_devices(TrainerConfig(devices=asked))
    assert local == found
    assert devices.count_devices(local) == number


@pytest.mark.usefixtures("gpus")
def test_gpus_that_are_not_there() -> None:
    for asked in (5, [0, 4]):
        with pytest.raises(ConfigError, match=r"but torch finds only 4 GPUs .*Hint: set trainer.devices=4"):
            devices.local_devices(TrainerConfig("gpu", asked))


@pytest.mark.usefixtures("no_gpu")
def test_without_gpu() -> None:
    assert devices.device_type("auto") == "cpu"
    assert devices.local_devices(TrainerConfig()) == 1
    assert devices.local_devices(TrainerConfig("cpu", 3)) == 3
    for asked in ("gpu", "cuda"):
        with pytest.raises(ConfigError, match=f"trainer.accelerator={asked} needs a GPU"):
            devices.device_type(asked)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("visible", "allocated", "refused"),
    [
        ("0,3", None, "CUDA_VISIBLE_DEVICES=0,3 lists GPUs"),
        (None, "8", "SLURM_GPUS_ON_NODE=8 lists GPUs"),
        ("", "8", None),  # hidden on purpose
        ("-1", None, None),
        (None, "0", None),
    ],
)
def test_gpus_that_torch_does_not_find(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, allocated: str | None, refused: str | None
) -> None:
    for name, value in (("CUDA_VISIBLE_DEVICES", visible), ("SLURM_GPUS_ON_NODE", allocated)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert devices.device_type("cpu") == "cpu"
    if refused is None:
        assert devices.device_type("auto") == "cpu"
    else:
        with pytest.raises(ConfigError, match=f"{refused}, but torch finds none. Hint: .*trainer.accelerator=cpu"):
            devices.device_type("auto")


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("asked", "local_rank", "num", "numbers"), [(2, 1, 1, [1]), ([0, 3], 1, 1, [3]), ("auto", 0, 4, [0, 1, 2, 3])]
)
def test_own_gpus(
    monkeypatch: pytest.MonkeyPatch, asked: object, local_rank: int, num: int, numbers: list[int]
) -> None:
    def properties(number: int) -> SimpleNamespace:
        return SimpleNamespace(name="NVIDIA H200", uuid=f"{number}", pci_bus_id=number, pci_device_id=0)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    trainer = TrainerConfig(devices=asked)
    assert [each.number for each in devices.rank_gpus(trainer, local_rank, num)] == numbers
    with pytest.raises(ConfigError, match="local rank 4 needs GPU 4, but torch finds 4 on this machine"):
        devices.rank_gpus(TrainerConfig(devices=1), 4)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("trainer", "device"),
    [
        (TrainerConfig(), "cuda:0"),
        (TrainerConfig(devices=[3, 1]), "cuda:3"),
        (TrainerConfig("gpu", "2,"), "cuda:2"),
        (TrainerConfig("cpu"), "cpu"),
    ],
)
def test_the_device_of_a_command_that_needs_one(trainer: TrainerConfig, device: str) -> None:
    """predict, whose trainer.devices=[3] must not be GPU 0."""
    assert devices.use_device(trainer) == torch.device(device)


@pytest.mark.parametrize("asked", ["auto", -1, 4])
def test_each_rank_sees_only_its_own_gpu(monkeypatch: pytest.MonkeyPatch, asked: object):
    """srun --gpus-per-task=1: each of four ranks numbers its GPU 0, and the UUIDs tell whether they differ."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-3f")
    card = SimpleNamespace(name="NVIDIA A100", uuid="3f", pci_bus_id=1, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: card if number == 0 else None)
    trainer = TrainerConfig(devices=asked)
    assert devices.local_devices(trainer, 4) == 1
    assert [devices.use_device(trainer, rank).index for rank in range(4)] == [0] * 4
    uuids = [devices.rank_gpus(trainer, rank)[0].uuid for rank in range(4)]
    (said,) = shared_gpus(uuids, str)
    assert said.startswith("each rank must have its own GPU, but 0 and 1 and 2 and 3 share GPU-3f")


@pytest.mark.parametrize(("asked", "num_ranks"), [(4, 2), ([1], 2)])
def test_one_visible_gpu_does_not_stand_for_others(monkeypatch: pytest.MonkeyPatch, asked: object, num_ranks: int):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="but torch finds only 1 GPU"):
        devices.local_devices(TrainerConfig(devices=asked), num_ranks)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_the_memory_of_a_freed_tensor_is_used_again():
    """A later tensor of the same size meets no page that the system must clear first."""
    code = (
        "import resource, torch; from imagenet_ddp.launch.devices import keep_freed_memory; keep_freed_memory()\n"
        "for _ in range(4):  # the second may still lie beside the first\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt; torch.ones(1 << 24)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    # a fork of a process with threads may take its memory from elsewhere
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert int(done.stdout) < 1000, f"a tensor of 64 MiB has 16,384 pages: {done.stderr}"


# ---- precision ----------------------------------------------------------------------------------------------------


def test_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "bf16_units", lambda: "AVX512-BF16")
    assert devices.choose_precision("auto", "cpu", DataConfig(image_size=17), lambda: 0.0)[0] == "bf16-mixed"
    for tiny in (DataConfig(image_size=16), DataConfig(image_size=64, train_size=48, progressive_start=16)):
        chosen, reason = devices.choose_precision("auto", "cpu", tiny, lambda: 0.0)
        assert chosen == "32-true" and "images this small" in reason
    monkeypatch.setattr(devices, "bf16_units", lambda: "")
    assert devices.choose_precision("auto", "cpu", DataConfig(image_size=64), lambda: 0.0)[0] == "32-true"
    for asked, name in ((64, "64-true"), ("bf16", "bf16-mixed")):
        assert devices.choose_precision(asked, "cpu", DataConfig(image_size=16), lambda: 0.0) == (name, "as set")


@pytest.mark.parametrize(
    ("options", "units", "expected"),
    [
        (("model.name=resnext50_32x4d",), "AMX", "bf16-mixed"),  # groups, but not of one channel
        (("model.name=convnext_tiny",), "AMX", "bf16-mixed"),  # its linear layers count for more
        (("model.library=timm", "model.name=convnext_atto"), "AMX", "32-true"),
        (("model.library=timm", "model.name=convnext_atto"), "AVX512-BF16", "bf16-mixed"),
        (("model.name=mobilenet_v2",), "AVX512-BF16", "32-true"),
        (("model.name=mobilenet_v3_small", "trainer.precision=bf16-mixed"), "AMX", "bf16-mixed"),
        (("model._target_=torch.nn.Linear", "allow_targets=[torch]"), "AMX", "bf16-mixed"),
    ],
)
def test_depthwise_convolutions_on_a_cpu(
    options: tuple[str, ...], units: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "bf16_units", lambda: units)
    value, reason = plan_of("data.image_size=64", *options).precision
    assert value == expected
    assert ("depthwise" in reason) == (value == "32-true")


@pytest.mark.parametrize(
    ("name", "major", "expected"),
    [
        ("Tesla V100-SXM2-16GB", 7, "16-mixed"),
        ("NVIDIA GeForce RTX 2080 Ti", 7, "16-mixed"),
        ("NVIDIA GeForce GTX 1660", 7, "32-true"),
        ("Tesla P100-PCIE-16GB", 6, "32-true"),
        ("NVIDIA A100", 8, "bf16-mixed"),
    ],
)
def test_precision_of_gpus(name: str, major: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: SimpleNamespace(name=name, major=major))
    monkeypatch.setattr(torch.version, "hip", None)
    value, reason = devices.choose_precision("auto", "cuda", DataConfig(), pytest.fail, 0)
    assert value == expected and name in reason
    assert devices.choose_precision("32", "cuda", DataConfig(), pytest.fail, 0) == ("32-true", "as set")


@pytest.mark.parametrize(("kind", "expected"), [("cpu", "bf16-mixed"), ("cuda", "16-mixed"), ("mps", "16-mixed")])
def test_the_precision_that_is_announced_is_the_one_that_lightning_uses(kind: str, expected: str) -> None:
    assert {devices.choose_precision(asked, kind, DataConfig(), pytest.fail)[0] for asked in ("16", "16-mixed")} == {
        expected
    }


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
    for _ in range(2):
        got = gradients(True)
        assert got.isfinite().all()
        last, strided = weights["layer4.1.conv2.weight"].grad, weights["layer4.0.conv1.weight"].grad
        assert last is not None and strided is not None
        last[:, :, 1, 1] = 0  # all others read padding only
        assert not last.any() and not strided[:, :, 0].any() and not strided[:, :, :, 0].any()
        assert torch.cosine_similarity(got, wanted, dim=0) > 0.98
