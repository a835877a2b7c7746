"""nvidia-smi's answers as texts, and GPUs in the words of the log from made-up properties."""

from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_ddp.distributed.nvidia_gpus import RankGpu, describe_gpus, parse_gpus

H200 = "NVIDIA H200"


def test_what_nvidia_smi_says():
    answer = "GPU-aa11, NVIDIA A100-SXM4-80GB\nGPU-bb33, Tesla V100-SXM2-16GB\n"
    assert parse_gpus(answer) == [("GPU-aa11", "NVIDIA A100-SXM4-80GB"), ("GPU-bb33", "Tesla V100-SXM2-16GB")]


def made(number: int, physical: int, visible: str | None = None, model: str = H200, **more: Any) -> RankGpu:
    keys = {"name": model, "uuid": f"{physical:08x}-0000-1111-2222-333333333333", "pci_bus_id": 0x1B + physical,
            "pci_device_id": 0}  # fmt: skip
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return RankGpu.from_properties(SimpleNamespace(**(keys | more)), number, environ)


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (made(2, 2), "GPU 2 (GPU-00000002, bus 1D:00.0)"),
        (made(1, 3, "0,3"), "cuda:1 = GPU 3 (GPU-00000003, bus 1E:00.0)"),
        (made(0, 3, "GPU-00000003"), "cuda:0 (GPU-00000003, bus 1E:00.0)"),
        (made(0, 0, "MIG-5", uuid="MIG-5f2-a"), "cuda:0 (MIG-5f2-a, bus 1B:00.0)"),
        (made(0, 0, pci_bus_id=None), "GPU 0 (GPU-00000000)"),
    ],
)
def test_one_gpu(one: RankGpu, words: str) -> None:
    assert one.words == words
    assert RankGpu(**vars(one)) == one, "through the store"


def test_one_line_for_each_node() -> None:
    """Eight ranks are one line, 64 are eight; what all of a node share is said once."""
    eight = {rank: [made(rank, rank)] for rank in range(8)}
    (line,) = describe_gpus(eight, dict.fromkeys(range(8), "a"), 8)
    assert line.startswith(f"GPUs, {H200}: rank 0 GPU 0 (GPU-00000000, bus 1B:00.0), rank 1 GPU 1 (")

    many = {rank: [made(rank % 8, rank % 8)] for rank in range(64)}
    found = describe_gpus(many, {rank: f"host{rank // 8}" for rank in range(64)}, 8)
    assert [each.partition(":")[0] for each in found] == [f"GPUs of node {n} (host{n}), {H200}" for n in range(8)]
    assert ": rank 56 GPU 0 (" in found[7] and ", rank 63 GPU 7 (" in found[7]


def test_what_cuda_visible_devices_maps_to() -> None:
    two = {0: [made(0, 0, "0,3")], 1: [made(1, 3, "0,3", model="NVIDIA A10")]}
    assert describe_gpus(two, {0: "a", 1: "a"}, 2) == [
        "GPUs, CUDA_VISIBLE_DEVICES=0,3: rank 0 NVIDIA H200 cuda:0 = GPU 0 (GPU-00000000, bus 1B:00.0), "
        "rank 1 NVIDIA A10 cuda:1 = GPU 3 (GPU-00000003, bus 1E:00.0)."
    ]
