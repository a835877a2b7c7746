"""Find the paths of a long list that are not regular files, folder by folder. This module does not import torch."""

import os
import time
from collections.abc import Iterator, Sequence

from imagenet_ddp.data.sources.folder.disk_threads import map_concurrently

BUDGET_S = 20.0
FEW = 8  # up to this number of files, the files of a folder are checked one by one; with more, the folder is listed
_CHUNK = 64  # number of folders that a thread checks one after the other


def find_missing(folder: str, paths: Sequence[str], budget_s: float = BUDGET_S) -> list[int]:
    """Return the positions of the paths (relative to the folder, or absolute) that are missing or not regular files.

    A folder is listed once, for which a network disk needs one request per few hundred files. A million files in a
    thousand folders therefore take seconds. Each link takes a request of its own. Paths that are not checked within
    budget_s seconds count as existing.
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
            with os.scandir(where) as entries:
                for entry in entries:
                    if time.monotonic() > end_s:
                        return
                    if entry.is_file(follow_symlinks=False):  # free on most file systems
                        names.add(entry.name)
        except (OSError, ValueError):
            if not os.path.isdir(where):  # noqa: PTH112 (raises no error); if it exists, it cannot be listed
                yield from positions
                return
    for position in positions:
        path = paths[position]
        # links are checked one by one, and paths that are not listed, because some file systems encode ü differently
        if path.rpartition("/")[2] in names or os.path.isfile(os.path.join(folder, path)):  # noqa: PTH113, PTH118
            continue
        if time.monotonic() > end_s:
            return
        yield position
