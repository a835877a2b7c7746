"""Find the files of a long list that do not exist, folder by folder. This module does not import torch."""

import os
import time
from collections.abc import Iterator, Sequence

from imagenet_ddp.data.sources.folder.disk_threads import map_concurrently

BUDGET_S = 20.0
FEW = 8  # up to this number of files, the files of a folder are checked one by one; with more, the folder is listed
_CHUNK = 64  # number of folders that a thread checks one after the other


def find_missing(folder: str, paths: Sequence[str], budget_s: float = BUDGET_S) -> list[int]:
    """Return the positions of the paths (relative to the folder, or absolute) that do not exist.

    A folder is listed once, for which a network disk needs one request per few hundred files. A million files in a
    thousand folders therefore take seconds. Paths that are not checked within budget_s seconds count as existing.
    """
    by_folder: dict[str, list[int]] = {}
    for position, path in enumerate(paths):
        by_folder.setdefault(os.path.dirname(path), []).append(position)  # noqa: PTH120 (hot loop)
    folders = list(by_folder.items())
    end_s = time.monotonic() + budget_s

    def look(chunk: list[tuple[str, list[int]]]) -> list[int]:
        return [position for below, positions in chunk for position in _missing(folder, below, paths, positions, end_s)]

    chunks = [folders[first : first + _CHUNK] for first in range(0, len(folders), _CHUNK)]
    return sorted(position for found in map_concurrently(look, chunks) for position in found)


def _missing(folder: str, below: str, paths: Sequence[str], positions: list[int], end_s: float) -> Iterator[int]:
    if time.monotonic() > end_s:
        return
    names: set[str] = set()
    if len(positions) > FEW:
        where = os.path.join(folder, below)  # noqa: PTH118
        try:
            names = set(os.listdir(where))  # noqa: PTH208
        except (OSError, ValueError):
            if not os.path.isdir(where):  # noqa: PTH112 (raises no error); if it exists, it cannot be listed
                yield from positions
                return
    for position in positions:
        path = paths[position]
        # a path that is not listed is checked too, because some file systems encode ü differently from the table
        if path.rpartition("/")[2] in names or os.path.exists(os.path.join(folder, path)):  # noqa: PTH110, PTH118
            continue
        if time.monotonic() > end_s:
            return
        yield position
