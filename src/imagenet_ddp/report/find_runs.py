"""Find the run folders at and below a folder: a run, a sweep, a study, or any folder above them."""

import os
import re
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

RUN_FILES = frozenset({"config.yaml", "metrics.csv", "summary.json"})  # a run folder holds at least one of these
SUBFOLDERS = frozenset({"checkpoints", "logs"})  # of a run folder; never runs themselves
MAX_DEPTH = 8  # runs/<name>/<sweep>/<job> is 4
MAX_FOLDERS = 20_000  # a few seconds on a network disk


@dataclass(frozen=True)
class RunFolders:
    folders: list[Path]  # absolute, in natural order
    sweeps: list[Path]  # folders with a sweep.yaml
    complete: bool  # False: MAX_FOLDERS was reached


def find_runs(top: Path) -> RunFolders:
    """Search breadth first. Hidden folders and links to folders are not entered."""
    top = top.resolve()
    folders, sweeps, num_visited = [], [], 0
    queue = deque([(top, 0)])
    while queue and num_visited < MAX_FOLDERS:
        folder, depth = queue.popleft()
        num_visited += 1
        files, subfolders = _list(folder)
        if files & RUN_FILES:
            folders.append(folder)
        if "sweep.yaml" in files:
            sweeps.append(folder)
        if depth < MAX_DEPTH:
            queue.extend((folder / name, depth + 1) for name in sorted(subfolders))
    return RunFolders(sorted(folders, key=natural_order), sorted(sweeps, key=natural_order), not queue)


def _list(folder: Path) -> tuple[set[str], set[str]]:
    """Return the names of the files and of the subfolders to enter; what cannot be read is left out."""
    files, subfolders = set(), set()
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_file():
                    files.add(entry.name)
                elif entry.is_dir(follow_symlinks=False) and entry.name not in SUBFOLDERS and entry.name[0] != ".":
                    subfolders.add(entry.name)
    return files, subfolders


def natural_order(path: Path | str) -> list[list[tuple[int, int, str]]]:
    """Sorting key by which 2 comes before 10."""
    return [
        [(0, int(bit), "") if bit.isdecimal() else (1, 0, bit) for bit in re.split(r"(\d+)", part) if bit]
        for part in Path(path).parts
    ]
