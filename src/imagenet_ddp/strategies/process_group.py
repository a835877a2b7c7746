"""Check the process group that is requested, and create it on a store that is already connected, so that no other port
is needed.

This module imports torch but not Lightning, because the command calls it before it starts workers.
"""

import atexit
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from imagenet_ddp.config.schema.distributed import StrategyConfig
from imagenet_ddp.mistakes import Mistake, must_be, setting


def validate(strategy: StrategyConfig, kind: str, *, sync_batchnorm: bool = False) -> list[Mistake]:
    """Return a mistake if several processes cannot train with these options; [] if they can.

    kind: cpu, cuda or mps.
    """
    key, backend = "strategy.process_group_backend", strategy.process_group_backend
    if kind == "mps":
        allowed = "cpu or cuda for several processes, because Lightning has no DistributedDataParallel on MPS"
        ways = setting("trainer.devices=1", "trainer.num_nodes=1"), setting("trainer.accelerator=cpu")
        return [must_be("trainer.accelerator", allowed, "mps", *ways)]
    if sync_batchnorm and kind == "cpu":
        what = "trainer.sync_batchnorm=true needs GPUs, because torch's SyncBatchNorm does not run on CPUs"
        return [Mistake(what, ("trainer.sync_batchnorm",), (setting("trainer.sync_batchnorm=false"),))]
    if backend == "nccl" and kind == "cpu":
        return [Mistake(f"{key}=nccl is for GPUs, but this run uses CPUs", (key,), (setting(f"{key}=null"),))]
    return []


def init_process_group(
    rank: int, world_size: int, store: Store, device: torch.device, backend: str | None, timeout_s: float
) -> None:
    """Join the process group.

    store: a store with keys that no other process group uses. device: result of devices.use_device. backend:
    None means nccl on GPUs and gloo on CPUs. timeout_s: longest wait in seconds in one collective, and for the other
    ranks when the group is created.
    """
    # A store that is passed in keeps its own time limit, that of the rendezvous, and NCCL waits for its unique ID
    # there. The limit belongs to the connection, which a prefix shares, so this group gets its own connection.
    store = store.clone()
    store.set_timeout(timedelta(seconds=timeout_s))
    on_gpu = device.type == "cuda"
    backend = backend or ("nccl" if on_gpu else "gloo")
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


def gather_on_first(mine: Any, world_size: int) -> list[Any] | None:
    """Return what each rank has passed, in the order of the ranks, on rank 0, and None on the other ranks. Call on all
    ranks. mine: of any type that can be pickled."""
    if world_size == 1:
        return [mine]
    found: list[Any] | None = [None] * world_size if distributed.get_rank() == 0 else None
    distributed.gather_object(mine, found)
    return found


def destroy_process_group() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()
