"""Check that this torch and this kind of device support the requested process group. Imports torch, but not Lightning:
the command calls this before it starts workers."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed


def validate(strategy: Mapping[str, Any], kind: str) -> list[str]:
    """Return why several processes cannot train this way; [] if they can.

    strategy: the resolved strategy.* keys. kind: cpu, cuda or mps.
    """
    key, backend = "strategy.process_group_backend", strategy["process_group_backend"]
    if kind == "mps":
        return [
            "Several processes need CPUs or CUDA devices, but trainer.accelerator is mps: Lightning has no "
            "DistributedDataParallel there. Hint: trainer.devices=1 trainer.num_nodes=1, or trainer.accelerator=cpu."
        ]
    if backend == "nccl" and kind == "cpu":
        return [f"{key}=nccl is for GPUs, but this runs on CPUs. Hint: {key}=null."]
    name = backend or ("nccl" if kind == "cuda" else "gloo")
    is_available = {"nccl": distributed.is_nccl_available, "gloo": distributed.is_gloo_available}
    if not is_available[name]():
        hint = {
            "nccl": f"{key}=gloo (slower), or a torch for Linux with CUDA or ROCm.",
            "gloo": f"{key}=nccl on GPUs, or torch from its own wheels.",
        }[name]
        by_default = "" if backend else f" (the default for {kind})"
        return [
            f"{key}={name}{by_default} needs a torch that was built with {name.upper()}, but this one was not "
            f"(torch.distributed.is_{name}_available() is False). Hint: {hint}"
        ]
    if strategy["comm_hook"] == "powersgd" and kind == "cpu" and torch.cuda.is_available():
        return [
            "strategy.comm_hook=powersgd on CPUs works only where no CUDA device is visible: torch's hook waits for "
            "one in any case. Hint: CUDA_VISIBLE_DEVICES= before the command hides them."
        ]
    return []
