"""Images packed by several processes, given back in the order asked for."""

import multiprocessing
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any

import numpy as np
import torch

from imagenet_ddp.data.sources import Images
from imagenet_ddp.data.workers import begin_worker, choose_mp_context, start_fork_server
from imagenet_ddp.preparing.record import Packed, Packing, pack
from imagenet_ddp.schema import RunError

CHUNK = 4  # images per message between processes
AHEAD = 3  # chunks per process that are begun or wait to be taken: bounds the memory

_work: dict[str, Any] = {}  # of a pool's process: what it was started with


class Pool:
    """images: split -> its images. With one process, it is this one."""

    def __init__(self, images: Mapping[str, Images], packing: Packing, num_workers: int, mp_context: str):
        self._images, self._packing, self._num_workers = images, packing, num_workers
        self._executor: ProcessPoolExecutor | None = None
        self._num_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # for small images threads cost more than they give: half the time, with one
        if num_workers > 1:
            context = choose_mp_context(mp_context)
            if context == "forkserver":
                start_fork_server()
            self._executor = ProcessPoolExecutor(
                num_workers, multiprocessing.get_context(context), _begin, (dict(images), packing)
            )
            self._executor.submit(_pack, "", []).result()  # the start takes seconds, and belongs to no image's time

    def map(self, split: str, indices: np.ndarray) -> Iterator[Packed]:
        """Raises RunError where a process was ended from outside."""
        if self._executor is None:
            yield from (pack(self._images[split], index, self._packing) for index in indices.tolist())
            return
        chunks = iter(np.array_split(indices, -(-len(indices) // CHUNK)))
        waiting: deque[Future[Sequence[Packed]]] = deque()
        try:
            while True:
                for chunk in islice(chunks, max(0, AHEAD * self._num_workers - len(waiting))):
                    waiting.append(self._executor.submit(_pack, split, chunk.tolist()))
                if not waiting:
                    return
                yield from waiting.popleft().result()
        except BrokenProcessPool as error:
            raise RunError(
                "a process that packs images was ended from outside, most likely because the machine ran out of "
                "memory. HINT: prepare.num_workers=1 needs the least; type the same again, it goes on where it was."
            ) from error

    def close(self) -> None:
        torch.set_num_threads(self._num_threads)
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)


def _begin(images: Mapping[str, Images], packing: Packing) -> None:
    begin_worker(0)
    torch.set_num_threads(1)
    _work.update(images=images, packing=packing)


def _pack(split: str, indices: Sequence[int]) -> list[Packed]:
    return [pack(_work["images"][split], index, _work["packing"]) for index in indices]
