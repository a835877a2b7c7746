"""Extract one split of ImageNet from its archive into class folders, with threads; an interrupted run is resumed.

train.unpacking/.prepared.json names the archive; train.unpacking/.n01440764 is a class being written,
train.unpacking/n01440764 a finished one. Once all classes are right, train.unpacking is renamed to train.
"""

import hashlib
import json
import os
import re
import shutil
import tarfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from imagenet_ddp.data.sources.folder.scan import is_image
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.system.atomic_write import atomic_write
from imagenet_ddp.system.progress_bar import Progress
from imagenet_ddp.system.text import count_noun, shorten_list

RECORD = ".prepared.json"
_READ_BYTES = 2**22  # at a time, for the MD5
_BLOCK = 512  # bytes; a tar is made of such blocks
_MAX_END = 2**20 + 2 * _BLOCK  # bytes: two empty blocks, then up to a record, which has at most 1 MiB


@dataclass
class Record:
    """What a split was extracted from, and what it has."""

    archive: str
    num_bytes: int  # of the archive
    ctime_ns: int  # of the archive: unlike mtime, another for each download
    md5: str | None = None  # None: not computed
    num_images: int | None = None  # None: not finished
    num_classes: int | None = None

    @classmethod
    def of(cls, archive: Path) -> "Record":
        stat = archive.stat()
        return cls(archive.name, stat.st_size, stat.st_ctime_ns)

    @classmethod
    def read(cls, folder: Path) -> "Record | None":
        try:
            return cls(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        atomic_write(folder / RECORD, json.dumps(asdict(self), indent=1) + "\n")


@dataclass(frozen=True)
class ClassImages:
    """The images of one class: in a tar of their own inside the archive (train), or directly in it (val)."""

    name: str
    num_bytes: int
    inner_tar: tarfile.TarInfo | None
    images: Sequence[tarfile.TarInfo] = ()


# ---- what the archive contains ---------------------------------------------------------------------------------------


def train_classes(path: Path) -> list[ClassImages]:
    """Return the classes of ILSVRC2012_img_train.tar. Raises ConfigError."""
    members = _archive_members(path)
    if wrong := [member.name for member in members if not re.fullmatch(r"n\d{8}\.tar", _name(member))]:
        raise ConfigError(
            f"{path} must contain one archive per class (n01440764.tar), got {shorten_list(wrong)}. Hint: download it "
            "again."
        )
    return [ClassImages(_name(member).removesuffix(".tar"), member.size, member) for member in members]


def val_classes(path: Path, classes: Sequence[str]) -> list[ClassImages]:
    """Return the classes of ILSVRC2012_img_val.tar. classes: WordNet id of each image. Raises ConfigError."""
    members = {_name(member): member for member in _archive_members(path)}
    names = [f"ILSVRC2012_val_{number:08}.JPEG" for number in range(1, len(classes) + 1)]
    if members.keys() != set(names):
        raise ConfigError(
            f"{path} must contain {names[0]} to {names[-1]}, as many images as the devkit has classes for, got "
            f"{count_noun(len(members), 'file')}. Hint: download it again."
        )
    images: dict[str, list[tarfile.TarInfo]] = {}
    for name, wordnet_id in zip(names, classes, strict=True):
        images.setdefault(wordnet_id, []).append(members[name])
    return [ClassImages(name, sum(one.size for one in images[name]), None, images[name]) for name in sorted(images)]


def _archive_members(path: Path) -> list[tarfile.TarInfo]:
    try:
        with path.open("rb") as file:
            return _members(file)
    except tarfile.TarError as error:
        raise ConfigError(
            f"{path} ({path.stat().st_size:,} bytes) must be a complete tar archive, but {error}. Hint: download it "
            "again."
        ) from error


def _members(file: IO[bytes]) -> list[tarfile.TarInfo]:
    """Return the files of a tar. Raises TarError, also where tarfile takes a damaged header, a hole or the end of an
    incomplete file for the end of the archive, and where a name occurs twice."""
    with tarfile.open(fileobj=file, mode="r:") as tar:
        members = [member for member in tar if not member.isdir()]
        offset = tar.offset
    file.seek(offset)
    rest = file.read(_MAX_END + 1)
    if not _BLOCK <= len(rest) <= _MAX_END or rest.strip(b"\0"):
        raise tarfile.ReadError(
            f"it is incomplete or damaged after {count_noun(len(members), 'file')}, at byte {offset:,}"
        )
    if not members:
        raise tarfile.ReadError("it contains no file")
    if special := [member.name for member in members if not member.isreg()]:
        raise tarfile.ReadError(f"it contains links or special files: {shorten_list(special)}")
    if len({_name(member) for member in members}) < len(members):
        raise tarfile.ReadError("it contains a file twice")
    return members


def _name(member: tarfile.TarInfo) -> str:
    """Return the name without folders: an archive must not choose where its files are written."""
    return member.name.rpartition("/")[2]


# ---- extraction ------------------------------------------------------------------------------------------------------


class _CancelledError(Exception):
    """Another thread has failed, or the command is being stopped."""


class Extraction:
    """Extract one split."""

    def __init__(
        self, archive: Path, folder: Path, classes: Sequence[ClassImages], with_md5: bool, say: Callable[[str], None]
    ):
        """Prepare the folder folder.unpacking; what another archive left there is deleted."""
        self.archive, self.classes, self._with_md5 = archive, classes, with_md5
        self.draft = folder.with_name(f"{folder.name}.unpacking")
        self.md5: str | None = None
        self._cancelled = threading.Event()
        record, wanted = Record.read(self.draft), Record.of(archive)
        if self.draft.exists() and (record is None or record.ctime_ns != wanted.ctime_ns):
            say(f"Deleting {self.draft}, which was made from another archive.")
            shutil.rmtree(self.draft)
        if not self.draft.exists():
            self.draft.mkdir(parents=True)
            wanted.write(self.draft)
        self._todo = [one for one in classes if not _is_complete(self.draft / one.name)]
        if num_done := len(classes) - len(self._todo):
            say(f"Resuming: {num_done:,} of {count_noun(len(classes), 'class')} are extracted already.")

    @property
    def num_bytes_left(self) -> int:
        return sum(one.num_bytes for one in self._todo)

    def progress(self, on_line: Callable[[str], None]) -> Progress:
        """Count classes, weighted by the bytes to extract and to compute the MD5 of."""
        extract = sum(one.num_bytes for one in self.classes)
        weight = extract + self.archive.stat().st_size * self._with_md5
        progress = Progress(self.draft.stem, len(self.classes), "classes", weight=weight, on_line=on_line)
        progress.add_earlier(len(self.classes) - len(self._todo), extract - self.num_bytes_left)
        return progress

    def run(self, num_threads: int, progress: Progress) -> None:
        """Extract all classes, and compute the MD5 meanwhile: 138 GiB take minutes, and both read the same cached
        pages. Raises RunError, or OSError of the disk; finished classes stay."""
        # Threads: the work is reading and writing, which releases the interpreter's lock, and a killed process leaves
        # no child behind that goes on writing.
        with ThreadPoolExecutor(num_threads + self._with_md5) as pool:
            pending: set[Future[None]] = {pool.submit(self._compute_md5, progress)} if self._with_md5 else set()
            pending |= {pool.submit(self._extract, one, progress) for one in self._todo}
            try:
                while pending:  # in short turns: a signal is handled in between
                    done, pending = wait(pending, timeout=1.0, return_when=FIRST_EXCEPTION)
                    for future in done:
                        future.result()
            except BaseException:
                self._cancelled.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _compute_md5(self, progress: Progress) -> None:
        digest = hashlib.md5(usedforsecurity=False)
        with self.archive.open("rb", buffering=0) as file:
            while block := file.read(_READ_BYTES):
                self._raise_if_cancelled()
                digest.update(block)
                progress.add(0, len(block))
        self.md5 = digest.hexdigest()

    def _extract(self, one: ClassImages, progress: Progress) -> None:
        part, folder = self.draft / f".{one.name}", self.draft / one.name
        for old in (part, folder):  # of a killed run
            if old.exists():
                shutil.rmtree(old)
        part.mkdir()
        try:
            with self.archive.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as outer:
                if one.inner_tar is None:
                    self._copy(outer, one.images, part, progress)
                else:
                    inner = outer.extractfile(one.inner_tar)
                    assert inner is not None
                    images = _members(inner)
                    if wrong := [member.name for member in images if not is_image(_name(member))]:
                        raise tarfile.ReadError(f"it contains {shorten_list(wrong)}, which are no images")
                    inner.seek(0)
                    with tarfile.open(fileobj=inner, mode="r:") as tar:
                        self._copy(tar, images, part, progress)
        except tarfile.TarError as error:
            raise RunError(
                f"{one.name} in {self.archive} must be complete, but {error}. Hint: download {self.archive.name} "
                "again, then run this again."
            ) from error
        part.rename(folder)
        progress.add(1, 0)

    def _copy(self, tar: tarfile.TarFile, images: Sequence[tarfile.TarInfo], folder: Path, progress: Progress) -> None:
        for image in images:
            self._raise_if_cancelled()
            file = tar.extractfile(image)
            assert file is not None
            content = file.read()
            if len(content) < image.size:
                raise tarfile.ReadError(f"it ends in {image.name}: the file has changed since it was opened")
            (folder / _name(image)).write_bytes(content)
            progress.add(0, image.size)

    def _raise_if_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise _CancelledError


def _is_complete(folder: Path) -> bool:
    """Return whether a class is finished, and no power cut has emptied a file of it."""
    sizes = [entry.stat().st_size for entry in os.scandir(folder)] if folder.is_dir() else []
    return bool(sizes) and all(sizes)
