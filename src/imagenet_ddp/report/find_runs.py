"""Find the run folders in a run, a sweep, a study, or any folder above them."""

import os
import re
from pathlib import Path

RUN_FILES = frozenset({"config.yaml", "metrics.csv", "summary.json"})  # a run folder holds at least one of these
EVALUATION = "evaluation"  # the subfolder with the evaluation of a run, which `report RUN` makes
OF_A_RUN = (EVALUATION, "csv")  # in a run folder, hold files of its names: logger=csv writes csv/metrics.csv
SUBFOLDERS = frozenset({"checkpoints", "logs"})  # subfolders of a run folder that are never runs themselves


def find_runs(top: Path) -> list[Path]:
    """Return the run folders in `top`, including `top`, as absolute paths in natural order. Hidden folders, unreadable
    folders and links to folders are not entered."""
    folders = []
    for folder, subfolders, files in os.walk(top.resolve()):
        subfolders[:] = [name for name in subfolders if name not in SUBFOLDERS and not name.startswith(".")]
        if not RUN_FILES.isdisjoint(files):
            folders.append(Path(folder))
            subfolders[:] = [name for name in subfolders if name not in OF_A_RUN]
    return sorted(folders, key=natural_order)


def natural_order(path: Path | str) -> list[list[tuple[int, int, str]]]:
    """Return a sort key that puts 2 before 10."""
    return [
        [(0, int(bit), "") if bit.isdecimal() else (1, 0, bit) for bit in re.split(r"(\d+)", part) if bit]
        for part in Path(path).parts
    ]
