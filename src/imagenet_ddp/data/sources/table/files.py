"""Find out which files of a long list do not exist, folder by folder. No torch."""

import os
import time
from collections.abc import Iterator, Sequence

from imagenet_ddp.data.sources.folder.disk_threads import map_concurrently

BUDGET_S = 20.0
FEW = 8  # up to so many files of a folder are checked one by one; for more, the folder is listed
_CHUNK = 64  # folders that a thread checks, one after the other


def find_missing(folder: str, paths: Sequence[str], budget_s: float = BUDGET_S) -> list[int]:
    """Return the positions of the paths (relative to the folder, or absolute) that do not exist.

    A folder is listed once, which takes a network disk one request per some hundred files: a million files in a
    thousand folders take seconds. Paths not checked within budget_s count as existing.
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
            if not os.path.isdir(where):  # noqa: PTH112 (raises no error); else it may be entered, but not listed
                yield from positions
                return
    for position in positions:
        path = paths[position]
        # checked even if it is not listed: some file systems encode ü differently from the table
        if path.rpartition("/")[2] in names or os.path.exists(os.path.join(folder, path)):  # noqa: PTH110, PTH118
            continue
        if time.monotonic() > end_s:
            return
        yield position
