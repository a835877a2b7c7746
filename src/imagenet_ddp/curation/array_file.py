"""Read the arrays of a .npz file that may come from anyone."""

import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from imagenet_ddp.system.files import open_regular


def read_arrays(path: Path, names: Iterable[str], most_bytes: int | None = None) -> dict[str, np.ndarray]:
    """Return arrays that np.savez wrote. No code of the file is run, no pipe is waited for, and the arrays take no more
    memory than the file has bytes, because compressed parts are refused. most_bytes: of the file. Raises exceptions of
    many kinds for other files, as zipfile and numpy do."""
    with open_regular(path) as file:
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
        num_bytes, of_file = sum(part.file_size for part in parts), file.seek(0, 2)
        if most_bytes is not None and max(num_bytes, of_file) > most_bytes:
            raise ValueError(f"it holds {max(num_bytes, of_file):,} bytes, more than {most_bytes:,}")
        if num_bytes > of_file or any(part.compress_type != zipfile.ZIP_STORED for part in parts):
            raise ValueError("its arrays must not be compressed")
        file.seek(0)
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in names}
