"""Find the images in tar files by their headers alone, and read them by position, without extracting them.

tarfile takes a damaged header for the end of the archive, and reads headers of any size into memory, so the headers are
followed here; tarfile decodes each of them.
"""

import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.sources.base import Names
from imagenet_ddp.data.sources.image_files import MAX_FILE_BYTES
from imagenet_ddp.data.sources.walk import is_image
from imagenet_ddp.prepare.archives.archive_images import ArchiveImages, split_of, split_of_file
from imagenet_ddp.system.text import count_noun

BLOCK = 512  # bytes, of which all of a tar is made
MAX_HEADER_BYTES = 2**13  # of a long name, of which Linux has no longer one than 4,096
MAX_CLASS = 255  # characters of the name of a folder or file
EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


class Member(NamedTuple):
    """A regular file in a tar, or a link. offset: its first byte, from the beginning of the outermost file. num_bytes:
    -1 for a link, which has none of its own."""

    name: str
    offset: int
    num_bytes: int


def members(descriptor: int, begin: int, end: int) -> Iterator[Member]:
    """Yield the regular files and the links of the tar between two positions of an open file; folders and devices are
    passed over. Raises tarfile.TarError if it is damaged or its end is missing."""
    position, name, size = begin, "", -1  # name and size of an extended header are those of the next one
    while True:
        head = os.pread(descriptor, BLOCK, position) if position + BLOCK <= end else b""
        if head == bytes(BLOCK):
            return
        if len(head) < BLOCK:
            raise tarfile.TarError("its end is missing")
        info = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
        position += BLOCK
        is_extended = info.type in EXTENDED
        num_bytes = info.size if is_extended or size < 0 else size
        if num_bytes < 0 or info.type == tarfile.GNUTYPE_SPARSE or (is_extended and num_bytes > MAX_HEADER_BYTES):
            raise tarfile.TarError(f"the header at byte {position - BLOCK:,} is not one of an archive of images")
        begin_of_data = position
        if is_extended or info.isreg() or info.type not in tarfile.SUPPORTED_TYPES:
            position += -(-num_bytes // BLOCK) * BLOCK
        if position > end:
            raise tarfile.TarError("its end is missing")
        if info.type == tarfile.GNUTYPE_LONGNAME:
            name = os.fsdecode(os.pread(descriptor, num_bytes, begin_of_data).rstrip(b"\0"))
        elif info.type == tarfile.XHDTYPE:
            found = _pax(os.pread(descriptor, num_bytes, begin_of_data))
            name, size = os.fsdecode(found.get(b"path", os.fsencode(name))), int(found.get(b"size", b"-1"))
        elif not is_extended:
            if info.isreg() or info.islnk() or info.issym():
                yield Member(name or info.name, begin_of_data, num_bytes if info.isreg() else -1)
            name, size = "", -1


def _pax(records: bytes) -> dict[bytes, bytes]:
    """Return the values of an extended header: "LENGTH key=value" lines."""
    found = {}
    while records.strip(b"\0"):
        length = int(records.partition(b" ")[0]) if records[:1].isdigit() else 0
        key, equals, value = records[:length].partition(b" ")[2].partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise tarfile.TarError("an extended header is damaged")
        found[key], records = value[:-1], records[length:]
    return found


@dataclass
class Listed:
    """Images of one split, in the order of the files. classes: of each image; "" if nothing tells it."""

    names: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    files: list[int] = field(default_factory=list)  # position in the list of files
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


def list_images(
    paths: list[Path], folder: Path, labels: Mapping[str, str]
) -> tuple[dict[str, Listed], list[str], list[str]]:
    """Return (split -> images of the tar files, notes about what is left out, a message about each damaged file).

    The class of an image is that of its path in `labels` (the end of a path, without extension -> class), else the name
    of its folder in the inner tar, else of that tar (n01440764.tar), else of its folder; a folder that is called as a
    split does not count.
    """
    found: dict[str, Listed] = {}
    num_others, num_links, used, wrong = 0, 0, set[str](), list[str]()
    for number, path in enumerate(paths):
        of_file = split_of_file(path, folder)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            for member, outer in _with_inner(descriptor, os.fstat(descriptor).st_size):
                pure = PurePosixPath(member.name)
                if not is_image(pure.name):
                    num_others += 1
                    continue
                if member.num_bytes < 0:
                    num_links += 1
                    continue
                place = _place_of(pure.parent, PurePosixPath(outer))
                key = next((key for key in _ends([*place.above, pure.stem]) if key in labels), "") if labels else ""
                used.add(key)
                name = labels.get(key) or place.class_name
                if len(name) > MAX_CLASS:
                    raise tarfile.TarError(f"a folder or archive in it has a name of {len(name):,} characters")
                images = found.setdefault(place.split or of_file or "train", Listed())
                parts = [*[name] * (name not in place.folders), *place.folders, pure.name]
                images.names.append("/".join(parts).lstrip("/"))
                images.classes.append(name)
                images.files.append(number)
                images.offsets.append(member.offset)
                images.sizes.append(member.num_bytes)
        except (tarfile.TarError, ValueError) as error:
            wrong.append(
                f"{path} must be a whole tar file, but cannot be read: {error}. Hint: copy or download it again, and "
                "unpack it first if it is compressed."
            )
        finally:
            os.close(descriptor)
    notes = [f"{count_noun(num_others, 'file')} without an image's extension left out."] * bool(num_others)
    if num_links:
        notes.append(f"{count_noun(num_links, 'link')} to images left out: links are not followed.")
    if absent := len(labels.keys() - used):
        notes.append(f"The labels of {count_noun(absent, 'image')} are not used: the archives have no such image.")
    return found, notes, wrong


class Place(NamedTuple):
    """What the place of an image tells of it. above: the names of all folders, from the outermost. split: that one of
    them is called as; None if none is. folders: those below it. class_name: "" if nothing tells it."""

    above: list[str]
    split: str | None
    folders: list[str]
    class_name: str


@lru_cache(1024)  # thousands of images share a place
def _place_of(folder: PurePosixPath, outer: PurePosixPath) -> Place:
    """Return the place of the images in a folder of a tar. outer: the name of that tar if it is in another."""
    above = [part for part in (*outer.parent.parts, *folder.parts) if part not in ("/", "..")]
    folders = [*takewhile(lambda part: not split_of([part]), above[::-1])][::-1]
    is_flat = split_of([folder.name]) is not None or folder.name in ("", "..")
    class_name = (outer.stem if is_flat else "") or (folders[-1] if folders else "")
    return Place(above, split_of(above[::-1]), folders, class_name)


def _ends(parts: list[str]) -> Iterator[str]:
    """Yield a path, then its ends, from the longest to the last part alone."""
    return ("/".join(parts[first:]) for first in range(len(parts)))


def _with_inner(descriptor: int, end: int) -> Iterator[tuple[Member, str]]:
    """Yield the members of a tar file, and in place of each tar in it its members, with the name of that tar."""
    for member in members(descriptor, 0, end):
        if not member.name.endswith(".tar") or member.num_bytes < 0:
            yield member, ""
            continue
        for inner in members(descriptor, member.offset, member.offset + member.num_bytes):
            yield inner, member.name


class TarImages(ArchiveImages):
    """targets: int64 (N,), positions in the classes."""

    def __init__(self, paths: list[Path], folder: Path, found: Listed, targets: np.ndarray):
        self.location, self.targets, self.names = str(folder), targets, Names.of(found.names)
        self._paths = [str(path) for path in paths]
        self._files = np.array(found.files, np.int32)
        self._offsets, self._sizes = np.array(found.offsets, np.int64), np.array(found.sizes, np.int64)
        self._open: dict[int, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def path(self, index: int) -> str:
        """Return a text that differs for all images, also where a tar has several of one name."""
        return f"{self._paths[self._files[index]]}, byte {self._offsets[index]:,}: {self.names[index]}"

    def encoded(self, index: int) -> bytes:
        number, size = int(self._files[index]), int(self._sizes[index])
        if size > MAX_FILE_BYTES:
            raise UnreadableImage(self.path(index), f"the file is too large ({size / 2**30:,.1f} GiB)")
        if number not in self._open:
            descriptor = self._open[number] = os.open(self._paths[number], os.O_RDONLY | os.O_NONBLOCK)
            assert stat.S_ISREG(os.fstat(descriptor).st_mode)
        data = os.pread(self._open[number], size, int(self._offsets[index]))
        if len(data) != size:
            raise UnreadableImage(self.path(index), f"{self._paths[number]} has become shorter")
        return data

    def sizes(self) -> np.ndarray:
        return self._sizes
