"""Backends and hooks that this torch, or this kind of device, does not have."""

import pytest
from torch import distributed

from imagenet_ddp.distributed.strategies.backends import validate


@pytest.mark.parametrize(
    ("backend", "kind", "built", "message"),
    [
        (None, "cpu", {"gloo"}, None),
        (None, "cuda", {"nccl", "gloo"}, None),
        ("gloo", "cuda", {"nccl", "gloo"}, None),
        ("nccl", "cpu", {"nccl", "gloo"}, "nccl is for GPUs, but this run uses CPUs. Hint: set "),
        ("nccl", "cuda", {"gloo"}, "nccl needs a torch that was built with NCCL"),
        (None, "cuda", {"gloo"}, "nccl (the default for cuda) needs a torch that was built with NCCL"),
        (None, "cpu", set(), "gloo (the default for cpu) needs a torch that was built with GLOO"),
        ("gloo", "mps", {"gloo"}, "DistributedDataParallel on MPS, got mps. Hint: set trainer.devices=1"),
    ],
)
def test_backends_that_torch_does_not_have(
    monkeypatch: pytest.MonkeyPatch, backend: str | None, kind: str, built: set[str], message: str | None
) -> None:
    for name in ("nccl", "gloo"):
        monkeypatch.setattr(distributed, f"is_{name}_available", lambda name=name: name in built)
    errors = validate({"process_group_backend": backend, "comm_hook": None}, kind)
    assert (message is None and errors == []) or (message and message in errors[0]), errors
