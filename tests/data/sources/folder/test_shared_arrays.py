import os

import numpy as np
import pytest

from imagenet_ddp.data.sources.folder.shared_arrays import SharedArrays


def test_arrays_are_equal_and_closed():
    arrays = {"a": np.arange(50_000), "b": np.zeros((0, 3), dtype=np.int64), "c": np.arange(6, dtype=np.uint8)[::2]}
    shared = SharedArrays(arrays)
    for name, array in arrays.items():
        assert np.array_equal(shared[name], array)
        assert shared[name].dtype == array.dtype
        assert not shared[name].flags.writeable
    fd = shared._fd
    del shared
    if fd is not None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
