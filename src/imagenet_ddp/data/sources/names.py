"""Store the names of images as one array of bytes."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Names:
    """text: uint8, all names one after the other; ends: int64 (N,), where each ends.

    A list of a million strings would be copied into every forked worker, as its reference counts change.
    """

    text: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, names: Iterable[str]) -> "Names":
        encoded = [os.fsencode(name) for name in names]
        ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends)

    def __getitem__(self, index: int) -> str:
        begin = int(self.ends[index - 1]) if index else 0
        return os.fsdecode(self.text[begin : int(self.ends[index])].tobytes())
