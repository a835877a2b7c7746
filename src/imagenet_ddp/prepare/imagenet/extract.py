"""The classes of one split, out of an archive into their folders: in parallel, gone on with after any end, and under
the split's own name only once all of it is right.

train.unpacking/.prepared.json says which archive it comes from; train.unpacking/.n01440764 is a class being written,
train.unpacking/n01440764 a finished one. The last step makes train of train.unpacking.
"""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare.imagenet.tar_index import Member
from imagenet_ddp.system.atomic_write import atomic_write
from imagenet_ddp.system.progress_bar import Progress
from imagenet_ddp.system.text import count_noun

RECORD = ".prepared.json"
_COPY_BLOCK = 2**20  # bytes read at once


@dataclass(frozen=True)
class Group:
    """The images of one class."""

    name: str
    num_bytes: int  # in the archive, about
    members: Callable[[], list[Member]]  # may read the archive; raises ConfigError
    num_expected: int | None  # images; None: not known


@dataclass
class Record:
    """Where a split comes from."""

    archive: str
    num_bytes: int
    ctime_ns: int  # of the archive: unlike mtime, a new download never has the old one's
    md5: str | None = None  # None: not looked at
    num_images: int | None = None  # of the finished split
    num_classes: int | None = None

    def is_of(self, archive: Path) -> bool:
        stat = archive.stat()
        return (self.num_bytes, self.ctime_ns) == (stat.st_size, stat.st_ctime_ns)


def of_archive(archive: Path) -> Record:
    stat = archive.stat()
    return Record(archive.name, stat.st_size, stat.st_ctime_ns)


def read_record(folder: Path) -> Record | None:
    try:
        return Record(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_record(folder: Path, record: Record) -> None:
    atomic_write(folder / RECORD, json.dumps(asdict(record), indent=1) + "\n")


def draft_folder(folder: Path) -> Path:
    """Where the split grows before it has its own name."""
    return folder.with_name(f"{folder.name}.unpacking")


class StoppedError(Exception):
    """Another thread has failed."""


class Unpacking:
    """One split. progress counts its classes, weighted by bytes."""

    def __init__(self, archive: Path, folder: Path, groups: Iterable[Group], say: Callable[[str], None]):
        self._archive, self._say = archive, say
        self._draft = draft_folder(folder)
        self._groups = list(groups)
        self._stop = threading.Event()
        self.num_images = 0
        self.failed: list[str] = []  # sentences

    def begin(self, progress: Progress) -> int:
        """Bytes still to be written. What was made from another archive is cleared away."""
        record = read_record(self._draft)
        if self._draft.exists() and (record is None or not record.is_of(self._archive)):
            self._say(f"{self._draft} is of another archive, and is cleared away.")
            shutil.rmtree(self._draft)
        if not self._draft.exists():
            self._draft.mkdir(parents=True)
            write_record(self._draft, of_archive(self._archive))
        finished = {entry.name for entry in os.scandir(self._draft) if entry.is_dir()}
        self._left = []
        for group in self._groups:
            num_found = _whole(self._draft / group.name, group) if group.name in finished else None
            if num_found is None:
                self._left.append(group)
            else:
                self.num_images += num_found
                progress.before(1, group.num_bytes)
        if num_done := len(self._groups) - len(self._left):
            self._say(f"There from an earlier run: {num_done:,} of {count_noun(len(self._groups), 'class')}.")
        return sum(group.num_bytes for group in self._left)

    def run(self, num_workers: int, progress: Progress) -> None:
        """Fills `failed`; goes on after a class that cannot be unpacked, but not after an error of the disk."""
        with self._archive.open("rb", buffering=0) as file, ThreadPoolExecutor(num_workers) as pool:
            # Threads: the work is reading and writing, for which Python lets go of its lock, and a killed process
            # leaves no worker behind that goes on writing.
            tasks = {pool.submit(self._unpack, group, file.fileno(), progress): group for group in self._left}
            try:
                self._await(tasks)
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _await(self, tasks: dict[Future[int], Group]) -> None:
        waiting = set(tasks)
        while waiting:
            done, waiting = wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED)
            for task in done:
                try:
                    self.num_images += task.result()
                except ConfigError as error:
                    self.failed += error.mistakes

    def _unpack(self, group: Group, archive: int, progress: Progress) -> int:
        """Number of images."""
        members = group.members()
        if group.num_expected is not None and len(members) != group.num_expected:
            raise ConfigError(
                f"{group.name} must have {count_noun(group.num_expected, 'image')} by the devkit, but "
                f"{self._archive} has {len(members):,}. Hint: download it again; for a part of the images on purpose, "
                "prepare.verify=false and an archive_dir without the devkit."
            )
        draft, folder = self._draft / f".{group.name}", self._draft / group.name
        for old in (draft, folder):  # a killed run's, or not whole
            if old.exists():
                shutil.rmtree(old)
        draft.mkdir()
        for member in members:
            self._copy(archive, member, draft / member.name)
            progress.add(0, member.size)
        draft.rename(folder)
        progress.add(1, group.num_bytes - sum(member.size for member in members))
        return len(members)

    def _copy(self, archive: int, member: Member, path: Path) -> None:
        at, end = member.offset, member.offset + member.size
        with path.open("xb") as file:
            while at < end:
                if self._stop.is_set():
                    raise StoppedError
                block = os.pread(archive, min(_COPY_BLOCK, end - at), at)
                if not block:
                    raise ConfigError(
                        f"{self._archive} must be {end:,} bytes or more, but ends at {at:,}: it has changed "
                        "since it was opened. Hint: wait until it is whole, then run this again."
                    )
                file.write(block)
                at += len(block)


def _whole(folder: Path, group: Group) -> int | None:
    """Number of images of a finished class; None where it is not whole, as after a power cut."""
    sizes = [entry.stat().st_size for entry in os.scandir(folder)]
    if not sizes or min(sizes) == 0 or (group.num_expected is not None and len(sizes) != group.num_expected):
        return None
    return len(sizes)
