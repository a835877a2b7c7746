"""What this torch, and this kind of device, have for a process group. No Lightning here: it is asked before workers
start."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed


def mistake(strategy: Mapping[str, Any], kind: str) -> str | None:
    """strategy: the resolved strategy.* keys. kind: cpu, cuda or mps. None where several processes can train so."""
    return backend_mistake(strategy["process_group_backend"], kind) or hook_mistake(strategy["comm_hook"], kind)


def backend_mistake(backend: str | None, kind: str) -> str | None:
    """The sentence where this torch, or this kind of device (cpu, cuda, mps), does not have the process group's
    backend; None where it has."""
    key = "strategy.process_group_backend"
    if kind == "mps":
        return (
            "Several processes expect CPUs or CUDA devices, but trainer.accelerator is mps: Lightning has no "
            "DistributedDataParallel there. Hint: trainer.devices=1 trainer.num_nodes=1, or trainer.accelerator=cpu."
        )
    if backend == "nccl" and kind == "cpu":
        return f"{key}=nccl is for GPUs, but this runs on CPUs. Hint: {key}=null."
    wanted = backend or ("nccl" if kind == "cuda" else "gloo")
    available = {
        "nccl": distributed.is_nccl_available,
        "gloo": distributed.is_gloo_available,
        "mpi": distributed.is_mpi_available,
    }
    if available[wanted]():
        return None
    hint = {
        "nccl": f"{key}=gloo (slower), or a torch for Linux with CUDA or ROCm.",
        "gloo": f"{key}=nccl on GPUs, or torch from its own wheels.",
        "mpi": f"{key}=null (nccl on GPUs, gloo on CPUs), or build torch from source on a machine with MPI: "
        "its wheels come without.",
    }[wanted]
    by_default = "" if backend else f" (the default for {kind})"
    return (
        f"{key}={wanted}{by_default} expects a torch that is built with {wanted.upper()}, but this one is not "
        f"(torch.distributed.is_{wanted}_available() is False). Hint: {hint}"
    )


def hook_mistake(hook: str | None, kind: str) -> str | None:
    """The sentence where the gradients' hook does not work on this kind of device."""
    if hook == "powersgd" and kind == "cpu" and torch.cuda.is_available():
        return (
            "strategy.comm_hook=powersgd on CPUs expects a machine without CUDA devices, but this one has: torch's "
            "hook then waits for a CUDA device in any case. Hint: CUDA_VISIBLE_DEVICES= before the command hides them."
        )
    return None
