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

from imagenet_ddp import screen
from imagenet_ddp.data.sources import Images
from imagenet_ddp.data.waiting import doings
from imagenet_ddp.data.workers import begin_worker, choose_mp_context, start_fork_server
from imagenet_ddp.preparing.record import Packed, Packing, pack
from imagenet_ddp.schema import RunError

CHUNK = 4  # images per message between processes
LOOK_S = 1.0  # between two looks at whether all processes live
SAY_S, TIMEOUT_S = 60.0, 1800.0  # of a wait for images: until a line about it, until its end
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
            try:
                self._result(self._submit("", []))  # its start belongs to no image's time
            except BaseException:
                self.close()
                raise

    def map(self, split: str, indices: np.ndarray) -> Iterator[Packed]:
        """Raises RunError where a process was ended from outside."""
        if self._executor is None:
            yield from (pack(self._images[split], index, self._packing) for index in indices.tolist())
            return
        chunks = iter(np.array_split(indices, -(-len(indices) // CHUNK)))
        waiting: deque[Future[list[Packed]]] = deque()
        while True:
            for chunk in islice(chunks, max(0, AHEAD * self._num_workers - len(waiting))):
                waiting.append(self._submit(split, chunk.tolist()))
            if not waiting:
                return
            yield from self._result(waiting.popleft())

    def _submit(self, split: str, indices: list[int]) -> Future[list[Packed]]:
        """It may start a process."""
        assert self._executor is not None
        try:
            return self._executor.submit(_pack, split, indices)
        except (BrokenProcessPool, ConnectionError, EOFError) as error:
            raise _ended() from error

    def _result(self, future: Future[list[Packed]]) -> list[Packed]:
        waited_s, said_s = 0.0, SAY_S
        while True:
            processes = list(self._processes.values())
            try:
                return future.result(timeout=LOOK_S)
            except TimeoutError:
                if future.done():  # the image's own
                    raise
            except (BrokenProcessPool, ConnectionError) as error:
                raise _ended() from error
            if not all(process.is_alive() for process in processes):
                # the executor does not notice where half an answer was written: it waits for the rest
                raise _ended()
            waited_s += LOOK_S
            if waited_s < said_s:
                continue
            said_s += SAY_S
            words = f"prepare=pack has waited {waited_s:.0f} s for images from processes {doings(self._processes)}"
            if waited_s >= TIMEOUT_S:
                raise RunError(f"{words}. HINT: is the disk of the images still there? Who stopped a process?")
            screen.say(f"{words}. It ends after {TIMEOUT_S:g} s.")

    @property
    def _processes(self) -> dict[int, Any]:
        return getattr(self._executor, "_processes", None) or {}

    def close(self) -> None:
        """Also where a process hangs, or its answer was not taken."""
        torch.set_num_threads(self._num_threads)
        if self._executor is not None:
            for process in list(self._processes.values()):
                process.kill()  # the executor would send SIGTERM, to which they are deaf, and wait
            # this process's own end of the answers' pipe: without it, half an answer is the last one
            writer = getattr(getattr(self._executor, "_result_queue", None), "_writer", None)
            if writer is not None:
                writer.close()
            self._executor.shutdown(wait=True, cancel_futures=True)


def _ended() -> RunError:
    return RunError(
        "a process that packs images was ended from outside, most likely because the machine ran out of "
        "memory. HINT: prepare.num_workers=1 needs the least; type the same again, it goes on where it was."
    )


def _begin(images: Mapping[str, Images], packing: Packing) -> None:
    begin_worker(0)
    torch.set_num_threads(1)
    _work.update(images=images, packing=packing)


def _pack(split: str, indices: Sequence[int]) -> list[Packed]:
    return [pack(_work["images"][split], index, _work["packing"]) for index in indices]
