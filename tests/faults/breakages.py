"""What is done to a training under way: one small function for each fault, for the tests and for the soak.

Each returns what mends it, or None where nothing has to be. FAULTS has them by name.
"""

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil
from faults.trainings import family
from helpers.forked_commands import Command


@dataclass
class Scene:
    """A training under way. run_dir: its run folder, on a disk of its own. tree: its images, of its own."""

    command: Command
    run_dir: Path
    tree: Path
    draw: random.Random = field(default_factory=random.Random)


Mend = Callable[[], None]
Broken = TypeVar("Broken", bound=Mend | None)
FAULTS: dict[str, Callable[[Scene], Mend | None]] = {}


def fault(function: Callable[[Scene], Broken]) -> Callable[[Scene], Broken]:
    FAULTS[function.__name__] = function
    return function


def _signal(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def largest(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return a rank: the largest below the first one; the first one where there is no other."""

    def size(process: psutil.Process) -> int:
        with contextlib.suppress(psutil.NoSuchProcess):
            return process.memory_info().rss
        return 0

    return [max(processes[1:] or processes, key=size)] if processes else []


@fault
def kill_the_command(scene: Scene) -> None:
    """SIGKILL of what was typed."""
    _signal(family(scene.command)[:1], signal.SIGKILL)


@fault
def kill_a_rank(scene: Scene) -> None:
    """SIGKILL of one rank."""
    _signal(largest(family(scene.command)), signal.SIGKILL)


@fault
def kill_any_process(scene: Scene) -> None:
    """SIGKILL of any one of its processes: a loader process, the process that forks them, multiprocessing's helper."""
    if processes := family(scene.command):
        _signal([scene.draw.choice(processes)], signal.SIGKILL)


@fault
def kill_all(scene: Scene) -> None:
    """SIGKILL of all of its processes, as when the machine is switched off."""
    _signal(family(scene.command), signal.SIGKILL)


@fault
def terminate(scene: Scene) -> None:
    """SIGTERM to what was typed."""
    _signal(family(scene.command)[:1], signal.SIGTERM)


@fault
def interrupt(scene: Scene) -> None:
    """Ctrl-C: SIGINT to what was typed."""
    _signal(family(scene.command)[:1], signal.SIGINT)


@fault
def pause_a_rank(scene: Scene) -> None:
    """SIGSTOP of one rank for a second, then SIGCONT."""
    stopped = largest(family(scene.command))
    _signal(stopped, signal.SIGSTOP)
    time.sleep(1)
    _signal(stopped, signal.SIGCONT)


@fault
def delete_images(scene: Scene) -> Mend:
    """The images of a class are deleted."""
    there = scene.tree / "train/dog"
    away = scene.tree / "gone"
    there.rename(away)
    return lambda: away.rename(there) and None


@fault
def truncate_images(scene: Scene) -> Mend:
    """Each image of a class ends in its middle."""
    contents = {path: path.read_bytes() for path in (scene.tree / "train/dog").iterdir()}
    for path, content in contents.items():
        os.truncate(path, len(content) // 2)

    def mend() -> None:
        for path, content in contents.items():
            path.write_bytes(content)

    return mend


@fault
def truncate_last_checkpoint(scene: Scene) -> None:
    """All processes are killed, and the disk has half of last.ckpt alone."""
    if last := _last_of_two(scene):
        os.truncate(last, last.stat().st_size // 2)


@fault
def flip_a_byte(scene: Scene) -> None:
    """All processes are killed, and the disk has another byte in last.ckpt."""
    if last := _last_of_two(scene):
        content = bytearray(last.read_bytes())
        content[scene.draw.randrange(len(content))] ^= 255
        last.write_bytes(content)


def _last_of_two(scene: Scene) -> Path | None:
    """Kill all processes; return last.ckpt where there is one before it: else nothing is left to continue from."""
    processes = family(scene.command)
    _signal(processes, signal.SIGKILL)
    psutil.wait_procs(processes, timeout=60)
    last = scene.run_dir / "checkpoints/last.ckpt"
    return last if last.exists() and last.with_name("previous.ckpt").exists() else None


@fault
def fill_the_disk(scene: Scene) -> Mend:
    """The disk of the run folder is full."""
    filler = scene.run_dir.parent / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))
    return filler.unlink


@fault
def make_read_only(scene: Scene) -> Mend:
    """The disk of the run folder becomes read-only, as after an error of the disk."""
    disk = scene.run_dir.parent
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
