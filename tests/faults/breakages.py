"""What is done to a training under way: a function for each fault, which returns what mends it."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

Mend = Callable[[], None]


def largest(processes: list[psutil.Process]) -> psutil.Process:
    """Return a rank: the largest process below the first one, or the first one if there is no other."""

    def size(process: psutil.Process) -> int:
        with contextlib.suppress(psutil.NoSuchProcess):
            return process.memory_info().rss
        return 0

    return max(processes[1:] or processes, key=size)


def delete_images(tree: Path) -> Mend:
    """Delete the images of a class."""
    there = tree / "train/dog"
    away = tree / "gone"
    there.rename(away)
    return lambda: away.rename(there) and None


def truncate_images(tree: Path) -> Mend:
    """Cut off each image of a class in its middle."""
    contents = {path: path.read_bytes() for path in (tree / "train/dog").iterdir()}
    for path, content in contents.items():
        os.truncate(path, len(content) // 2)

    def mend() -> None:
        for path, content in contents.items():
            path.write_bytes(content)

    return mend


def fill_the_disk(disk: Path) -> Mend:
    """Fill a disk."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))
    return filler.unlink


def make_read_only(disk: Path) -> Mend:
    """Make a disk read-only, as the system does after an error."""
    subprocess.run(["mount", "--bind", disk, disk], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
    return lambda: subprocess.run(["umount", "--lazy", disk], check=True) and None


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a disk in memory there. Raises PermissionError where that is not allowed."""
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]).returncode:
        raise PermissionError("a disk of its own needs root, and the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
