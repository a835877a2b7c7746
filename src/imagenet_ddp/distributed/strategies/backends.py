"""Check that this torch and this kind of device support the requested process group.

This module imports torch but not Lightning, because the command calls it before it starts workers.
"""

from collections.abc import Mapping
from typing import Any

from torch import distributed


def default_backend(kind: str) -> str:
    return "nccl" if kind == "cuda" else "gloo"


def validate(strategy: Mapping[str, Any], kind: str) -> list[str]:
    """Return an error if several processes cannot train with these options; [] if they can.

    strategy: the resolved strategy.* keys. kind: cpu, cuda or mps.
    """
    key, backend = "strategy.process_group_backend", strategy["process_group_backend"]
    if kind == "mps":
        return [
            "trainer.accelerator must be cpu or cuda for several processes, because Lightning does not support "
            "DistributedDataParallel on MPS, got mps. Hint: set trainer.devices=1 and trainer.num_nodes=1, or set "
            "trainer.accelerator=cpu."
        ]
    if backend == "nccl" and kind == "cpu":
        return [f"{key}=nccl is for GPUs, but this run uses CPUs. Hint: set {key}=null."]
    name = backend or default_backend(kind)
    is_available = {"nccl": distributed.is_nccl_available, "gloo": distributed.is_gloo_available}
    if not is_available[name]():
        hint = {
            "nccl": f"set {key}=gloo (slower), or install a torch build for Linux with CUDA or ROCm.",
            "gloo": f"set {key}=nccl on GPUs, or install torch from its official wheels.",
        }[name]
        by_default = "" if backend else f" (the default for {kind})"
        return [
            f"{key}={name}{by_default} needs a torch that was built with {name.upper()}, but this torch was not "
            f"(torch.distributed.is_{name}_available() is False). Hint: {hint}"
        ]
    return []
