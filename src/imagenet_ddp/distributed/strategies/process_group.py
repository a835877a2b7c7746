"""Make torch's default process group on a store that is already connected, on the port that is already open."""

import atexit
from datetime import timedelta

import torch
from torch import distributed

from imagenet_ddp.errors import ConfigError


def init_process_group(
    rank: int, world_size: int, store: distributed.Store, device: torch.device, backend: str | None, timeout_s: float
) -> None:
    """backend None: nccl on GPUs, gloo on CPUs. timeout_s: of one collective.

    store: with keys that no other group uses. Raises ConfigError where MPI numbers the processes differently.
    """
    timeout = timedelta(seconds=timeout_s)
    backend = backend or ("nccl" if device.type == "cuda" else "gloo")
    if backend == "mpi":  # MPI's runtime provides ranks and rendezvous: torch takes neither number nor store
        distributed.init_process_group("mpi", timeout=timeout)
        found = (distributed.get_rank(), distributed.get_world_size())
        if found != (rank, world_size):
            raise ConfigError(
                f"strategy.process_group_backend=mpi needs mpirun to start this process as rank {rank} of "
                f"{world_size}, but MPI made it rank {found[0]} of {found[1]}. Hint: start all with "
                f"`mpirun -n {world_size}`, or strategy.process_group_backend=null."
            )
        return
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=device if on_gpu else None,
    )
    if backend == "nccl":
        atexit.register(destroy_process_group)  # else torch warns at the end of the process


def destroy_process_group() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()
