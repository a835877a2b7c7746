"""Create torch's default process group on a store that is already connected, so that no other port is needed."""

import atexit
from datetime import timedelta

import torch
from torch import distributed

from imagenet_ddp.distributed.strategies.backends import default_backend


def init_process_group(
    rank: int, world_size: int, store: distributed.Store, device: torch.device, backend: str | None, timeout_s: float
) -> None:
    """Join the process group.

    store: a store with keys that no other process group uses. backend: None means nccl on GPUs and gloo on CPUs.
    timeout_s: longest wait in seconds in one collective, and for the other ranks when the group is created.
    """
    # A store that is passed in keeps its own time limit, that of the rendezvous, and NCCL waits for its unique ID
    # there. The limit belongs to the connection, which a prefix shares, so this group gets its own connection.
    store = store.clone()
    store.set_timeout(timedelta(seconds=timeout_s))
    backend = backend or default_backend(device.type)
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
        atexit.register(destroy_process_group)  # otherwise torch warns at the end of the process


def destroy_process_group() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()
