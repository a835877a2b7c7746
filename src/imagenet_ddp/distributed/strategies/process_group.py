"""Make torch's default process group on a store that is already connected, through the port that is already open."""

import atexit
from datetime import timedelta

import torch
from torch import distributed


def init_process_group(
    rank: int, world_size: int, store: distributed.Store, device: torch.device, backend: str | None, timeout_s: float
) -> None:
    """Join the process group. backend None: nccl on GPUs, gloo on CPUs. timeout_s: per collective.

    store: with keys that no other group uses.
    """
    backend = backend or ("nccl" if device.type == "cuda" else "gloo")
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if on_gpu else None,
    )
    if backend == "nccl":
        atexit.register(destroy_process_group)  # else torch warns at the end of the process


def destroy_process_group() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()
