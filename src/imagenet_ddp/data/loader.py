"""One split as a DataLoader: keys in, batches of uint8 out. How loader processes start, and how many, is decided
here."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from imagenet_ddp.cores import cores_per_process
from imagenet_ddp.data.sampler import BatchSampler, Key, hash_seed
from imagenet_ddp.data.sources import Images

STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)


class Batch(TypedDict):
    """The images that count come first; those that only fill up (see sampler.py) last."""

    image: Tensor  # uint8 (B, 3, H, W); float32, normalised, once on the device
    target: Tensor  # int64 (B,)
    index: Tensor  # int64 (B,), position in the split
    num_counted: int  # of this batch
    step_images: int  # that count in this step, over all ranks


class Samples(Dataset):
    """Images transformed. Each sample's randomness comes from (seed, epoch, index) alone: no worker, rank or history
    in it."""

    def __init__(self, images: Images, transform: Callable[[Tensor], Tensor], seed: int):
        self.images, self.transform, self.seed = images, transform, seed

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: Key) -> tuple[Tensor, int, Key]:
        # torch.manual_seed would also reach for every GPU: 153 µs against 2
        torch.default_generator.manual_seed(hash_seed(self.seed, key.epoch, key.index))
        return self.transform(self.images.read(key.index)), int(self.images.targets[key.index]), key


def collate(samples: list[tuple[Tensor, int, Key]]) -> Batch:
    images, targets, keys = zip(*samples, strict=True)
    out = None
    if torch.utils.data.get_worker_info() is not None:
        # stacked straight into shared memory: one copy less on the way to the parent
        shape = (len(images), *images[0].shape)
        storage = images[0]._typed_storage()._new_shared(len(images) * images[0].numel(), device=images[0].device)
        out = images[0].new(storage).resize_(shape)
    return Batch(
        image=torch.stack(images, out=out),
        target=torch.tensor(targets, dtype=torch.int64),
        index=torch.tensor([key.index for key in keys], dtype=torch.int64),
        num_counted=sum(key.counts for key in keys),
        step_images=keys[0].step_images,
    )


class EpochLoader(DataLoader):
    """Makes its iterator when the first batch is asked for. Lightning calls iter() before it tells the sampler the
    epoch; a plain loader with workers has by then already drawn the first batches, of epoch 0, after every resume."""

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        yield from super().__iter__()

    def close(self) -> None:
        """End this loader's processes, if it has any."""
        iterator: Any = self._iterator
        self._iterator = None
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


def make_loader(
    images: Images,
    transform: Callable[[Tensor], Tensor],
    sampler: BatchSampler,
    *,
    seed: int,
    num_workers: int,
    pin_memory: bool,
    mp_context: str,
) -> EpochLoader:
    arguments: dict[str, Any] = {}
    if num_workers:
        context = choose_mp_context(mp_context)
        if context == "forkserver":
            _start_fork_server()
        arguments = {"multiprocessing_context": context, "persistent_workers": True, "worker_init_fn": _begin_worker}
    return EpochLoader(
        Samples(images, transform, seed),
        batch_sampler=sampler,
        num_workers=num_workers,
        collate_fn=collate,
        pin_memory=pin_memory,
        **arguments,
    )


def choose_mp_context(asked: str) -> str:
    """auto: forkserver where there is one. A plain fork copies locks that other threads (Gloo, OpenMP, NCCL) may
    hold, and then waits for ever; spawn imports torch anew in every worker, where the fork server does so once."""
    if asked != "auto":
        return asked
    return (
        "forkserver"
        if "forkserver" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
        else "spawn"
    )


def choose_num_workers(asked: int | str, on_cpu: bool, local_world_size: int) -> tuple[int, str]:
    """(loader processes per rank, the reason): a number is taken as it is."""
    if asked != "auto":
        return int(asked), "as set"
    per_rank = cores_per_process(local_world_size)
    if on_cpu:
        # the step takes all cores, and ten times as long as decoding: a worker would only take turns with it
        return (0 if per_rank < 4 else per_rank // 4), f"training on the CPU, {per_rank} cores per process"
    return max(1, min(per_rank - 1, 16)), f"{per_rank} cores per GPU, one left to the training process"


def _start_fork_server() -> None:
    """A stop is the training process's to handle, and it must outlive its loader to save: the server, and so the
    workers it forks, are deaf to stop signals from their first moment. It imports torch while the training process
    goes on."""
    from multiprocessing import forkserver, resource_tracker  # Unix only

    forkserver.set_forkserver_preload(["imagenet_ddp.data.loader"])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # a new process inherits the mask
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # the tracker's start lets two of them through again
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker(worker: int) -> None:
    """The training process ends its workers; when it dies without doing so, they end too."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # torch's own watch asks for the parent's id, which is the fork server's: that one lives as long as its workers
    threading.Thread(target=_end_with_parent, name="end with parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
