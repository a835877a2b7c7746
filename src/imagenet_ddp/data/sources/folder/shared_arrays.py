"""Arrays that the training process and its loader processes have in common: one copy in memory, however they start."""

import mmap
import os
import weakref
from collections.abc import Mapping
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np

_LEAST_BYTES = 2**18  # a smaller set is copied: it costs less than a file descriptor
_ALIGN = 64  # bytes, as numpy's own files

_Layout = dict[str, tuple[str, tuple[int, ...], int]]  # name -> dtype, shape, first byte


class SharedArrays:
    """Read-only arrays by name. A process forked from this one sees the same memory; one that is spawned gets the
    descriptor of it. It lies neither in /dev/shm, whose size is limited in containers, nor in a file, which someone
    might cut or remove from a network disk below the feet of a long run."""

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        layout, end = _Layout(), 0
        for name, array in arrays.items():
            layout[name] = (array.dtype.str, array.shape, end)
            end += -(-array.nbytes // _ALIGN) * _ALIGN
        self._layout, self._fd = layout, None
        if end < _LEAST_BYTES or not hasattr(os, "memfd_create"):
            self._arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
            for array in self._arrays.values():
                array.flags.writeable = False
            return
        fd = os.memfd_create("imagenet_ddp")
        os.ftruncate(fd, end)
        with mmap.mmap(fd, end) as memory:
            for name, array in arrays.items():
                begin = layout[name][2]
                memory[begin : begin + array.nbytes] = np.ascontiguousarray(array).tobytes()
        self._map(fd)

    def _map(self, fd: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd)
        memory: Any = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        self._arrays = {
            name: np.frombuffer(memory, dtype, int(np.prod(shape, dtype=np.int64)), begin).reshape(shape)
            for name, (dtype, shape, begin) in self._layout.items()
        }

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def items(self) -> list[tuple[str, np.ndarray]]:
        return list(self._arrays.items())

    def __reduce__(self) -> Any:
        popen: Any = get_spawning_popen()
        if self._fd is None or popen is None:  # pickled for something else than a process that starts
            return SharedArrays, ({name: np.array(array) for name, array in self.items()},)
        from multiprocessing.reduction import DupFd

        return _take, (DupFd(self._fd), self._layout)


def _take(handle: Any, layout: _Layout) -> SharedArrays:
    """In the process that starts."""
    shared = SharedArrays.__new__(SharedArrays)
    shared._layout = layout
    shared._map(handle.detach())
    return shared
