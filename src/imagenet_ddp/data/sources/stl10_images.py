"""Read STL-10's images through a memory map."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.stl10 import SHAPE, read_split


class Stl10Images(Images):
    """One split of STL-10, or one fold of it. Only the path and the labels are pickled; each process maps the file
    itself."""

    def __init__(self, folder: Path, split: Literal["train", "test"], fold: int | None):
        """folder: contains the binary files. fold: 0 to 9, for the training images only; None: all images. Raises
        ConfigError if sizes or labels are wrong."""
        self.targets, self._records = read_split(folder, split, fold)
        self.location, self._file = str(folder), folder / f"{split}_X.bin"
        self._pixels: np.ndarray | None = None

    def path(self, index: int) -> str:
        return f"{self._file.name}[{self._records[index]}]"

    def read(self, index: int) -> Tensor:
        if self._pixels is None:
            self._pixels = np.asarray(np.memmap(self._file, dtype=np.uint8, mode="r")).reshape(-1, *SHAPE)
        return torch.from_numpy(self._pixels[self._records[index]].transpose(0, 2, 1).copy())  # stored column by column

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pixels": None}
