"""Run folders at and below any folder: a run, a sweep, a study, or all of them."""

import os
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path

MARKS = frozenset({"config.yaml", "metrics.csv", "summary.json"})  # a run folder holds one of these at least
INNER = frozenset({"checkpoints", "logs"})  # of a run folder, and never runs themselves
MAX_DEPTH = 8  # runs/<name>/<sweep>/<job> is 4
MAX_FOLDERS = 20_000  # a few seconds on a network disk


@dataclass(frozen=True)
class Found:
    folders: list[Path]  # absolute; in the order of their names, numbers by value
    sweeps: list[Path]  # folders with a sweep.yaml
    complete: bool  # False: more folders than are looked into


def search(top: Path) -> Found:
    """Hidden folders and links to folders are not entered."""
    top = top.resolve()
    folders, sweeps, looked_at = [], [], 0
    waiting = deque([(top, 0)])
    while waiting and looked_at < MAX_FOLDERS:
        folder, depth = waiting.popleft()
        looked_at += 1
        try:
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        if any(entry.name in MARKS and _is_file(entry) for entry in found):
            folders.append(folder)
        if any(entry.name == "sweep.yaml" for entry in found):
            sweeps.append(folder)
        if depth < MAX_DEPTH:
            waiting.extend((Path(entry.path), depth + 1) for entry in found if _is_entered(entry))
    return Found(sorted(folders, key=in_order), sorted(sweeps, key=in_order), not waiting)


def _is_entered(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.name not in INNER and not entry.name.startswith(".")
    except OSError:
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def in_order(path: Path | str) -> list[list[tuple[int, int, str]]]:
    """Sorting key: 2 comes before 10."""
    return [
        [(0, int(bit), "") if bit.isdecimal() else (1, 0, bit) for bit in re.split(r"(\d+)", part) if bit]
        for part in Path(path).parts
    ]
