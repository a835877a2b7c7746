"""GPUs in the words of the log, from made-up properties."""

from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_ddp.system.nvidia_gpus import RankGpu, describe_gpus


def made(number: int, physical: int, visible: str | None = None, **more: Any) -> RankGpu:
    keys = {"name": "NVIDIA H200", "uuid": f"{physical:08x}-0000-1111-2222-333333333333"}
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return RankGpu.from_properties(SimpleNamespace(**(keys | more)), number, environ)


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (made(2, 2), "cuda:2 = GPU 2 (NVIDIA H200, GPU-00000002)"),
        (made(1, 3, "0,3"), "cuda:1 = GPU 3 (NVIDIA H200, GPU-00000003)"),
        (made(0, 3, "GPU-00000003"), "cuda:0 (NVIDIA H200, GPU-00000003)"),
        (made(0, 0, "MIG-5", uuid="MIG-5f2-a"), "cuda:0 (NVIDIA H200, MIG-5f2-a)"),
    ],
)
def test_one_gpu(one: RankGpu, words: str) -> None:
    assert one.words == words
    assert RankGpu(**vars(one)) == one, "through the store"


def test_one_line_for_each_node() -> None:
    sixteen = {rank: [made(rank % 8, rank % 8)] for rank in range(16)}
    found = describe_gpus(sixteen, {rank: f"host{rank // 8}" for rank in range(16)}, 8)
    assert [each.partition(":")[0] for each in found] == ["GPUs of node 0 (host0)", "GPUs of node 1 (host1)"]
    assert ": rank 8 cuda:0 = GPU 0 (" in found[1] and ", rank 15 cuda:7 = GPU 7 (" in found[1]
