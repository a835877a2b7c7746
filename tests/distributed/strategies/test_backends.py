"""Backends and hooks that this torch, or this kind of device, does not have."""

import pytest
import torch
from torch import distributed

from imagenet_ddp.distributed.strategies.backends import backend_mistake, hook_mistake


@pytest.mark.parametrize(
    ("backend", "kind", "built", "said"),
    [
        (None, "cpu", {"gloo"}, None),
        (None, "cuda", {"nccl", "gloo"}, None),
        ("gloo", "cuda", {"nccl", "gloo"}, None),
        ("mpi", "cpu", {"gloo", "mpi"}, None),
        ("mpi", "cpu", {"gloo"}, "mpi expects a torch that is built with MPI, but this one is not"),
        ("nccl", "cpu", {"nccl", "gloo"}, "nccl is for GPUs, but this runs on CPUs. Hint: "),
        ("nccl", "cuda", {"gloo"}, "nccl expects a torch that is built with NCCL"),
        (None, "cuda", {"gloo"}, "nccl (the default for cuda) expects a torch that is built with NCCL"),
        (None, "cpu", set(), "gloo (the default for cpu) expects a torch that is built with GLOO"),
        ("gloo", "mps", {"gloo"}, "no DistributedDataParallel there. Hint: trainer.devices=1"),
    ],
)
def test_backends_that_torch_does_not_have(
    monkeypatch: pytest.MonkeyPatch, backend: str | None, kind: str, built: set[str], said: str | None
) -> None:
    for name in ("nccl", "gloo", "mpi"):
        monkeypatch.setattr(distributed, f"is_{name}_available", lambda name=name: name in built)
    mistake = backend_mistake(backend, kind)
    assert (said is None and mistake is None) or (said and mistake and said in mistake), mistake


def test_powersgd_on_cpus_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the hook calls torch.cuda.synchronize(<the CPU>), which begins with torch.cuda.device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "Hint: CUDA_VISIBLE_DEVICES=" in (hook_mistake("powersgd", "cpu") or "")
    assert hook_mistake("powersgd", "cuda") is None
    assert hook_mistake("bf16", "cpu") is None
    with pytest.raises(ValueError, match="cuda"):
        torch.cuda.device(torch.device("cpu"))
