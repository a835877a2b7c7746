"""Read one shard of a packed folder, and the records of its index."""

import mmap
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Record(NamedTuple):
    """The index entry of one image; see manifest.RECORD."""

    offset: int
    num_bytes: int
    shard: int
    crc32: int
    height: int
    width: int


class Shard:
    """An open shard. pixels: all its bytes, if they are decoded images."""

    def __init__(self, path: Path, is_raw: bool):
        self.file = os.open(path, os.O_RDONLY)
        self.touched_s = 0.0  # when its use was last noted; of data.streamed
        self.pixels: np.ndarray | None = None
        if is_raw:
            self.pixels = np.frombuffer(mmap.mmap(self.file, 0, access=mmap.ACCESS_READ), dtype=np.uint8)

    def is_gone(self) -> bool:
        """Return whether the file was removed; until it is closed, it still takes up disk space."""
        return os.fstat(self.file).st_nlink == 0

    def __del__(self) -> None:
        if hasattr(self, "file"):
            os.close(self.file)
