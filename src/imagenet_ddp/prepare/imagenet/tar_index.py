"""What a tar archive holds, or a tar inside a tar, by headers alone: names, and where the bytes lie. Nothing is
unpacked, and an archive that breaks off is told from one that ends."""

import io
import os
import tarfile
from dataclasses import dataclass

from imagenet_ddp.system.text import count_noun

_BLOCK = 512  # bytes; a tar is made of such blocks
_END = 2 * _BLOCK  # of zeros, and more up to a whole record
# bytes; 10,240 is what tar takes unless told otherwise (GNU tar's manual, "The Blocking Factor of an Archive")
_RECORDS = (10_240, *(_BLOCK * 2**power for power in range(12)))


class BrokenTarError(Exception):
    """The text completes "the archive must be whole, but ..."."""


@dataclass(frozen=True, slots=True)
class Member:
    name: str  # without folders: an archive chooses no path
    offset: int  # bytes from the begin of the file to the begin of the content
    size: int  # bytes


class _Section(io.RawIOBase):
    """Bytes begin to end of a file, as a file. Reads at a place of its own, so that threads can share the file."""

    def __init__(self, file: int, begin: int, end: int):
        self._file, self._begin, self._end, self._at = file, begin, end, begin

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at - self._begin

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: self._begin, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        return self._at - self._begin

    def read(self, size: int = -1) -> bytes:
        most = max(0, self._end - self._at)
        data = os.pread(self._file, most if size < 0 else min(size, most), self._at)
        self._at += len(data)
        return data


def members(file: int, begin: int, end: int, num_expected: int | None = None) -> list[Member]:
    """The plain files of the tar between two places of an open file, in their order. Raises BrokenTarError, also where
    tarfile would see an end, or skip something, without a word.

    num_expected: files; where so many are found none is lost, however the archive ends.
    """
    found: list[Member] = []
    try:
        with tarfile.open(fileobj=_Section(file, begin, end), mode="r:") as tar:
            while (info := tar.next()) is not None:
                if not info.isdir():
                    found.append(_member(info, begin, end))
                tar.members = []  # type: ignore[attr-defined]  # else it remembers them all
            rest = begin + tar.offset
    except tarfile.TarError as error:
        if begin == end:
            raise BrokenTarError("it is empty") from error
        after = f" after {found[-1].name}" if found else ""
        raise BrokenTarError(f"it breaks off{after}, at byte {end - begin:,} ({error})") from error
    if len(found) != num_expected and (wrong := _wrong_end(file, rest, end, end - begin)):
        raise BrokenTarError(
            f"after {count_noun(len(found), 'file')}, at byte {rest - begin:,} of {end - begin:,}, it neither goes on "
            f"nor ends: it {wrong}"
        )
    if not found:
        raise BrokenTarError("it holds no file")
    return found


def _member(info: tarfile.TarInfo, begin: int, end: int) -> Member:
    name = info.name.rpartition("/")[2]
    if not info.isreg() or info.issparse():
        raise BrokenTarError(f"{name} in it is no plain file, but a link, a special or a sparse one")
    member = Member(name, begin + info.offset_data, info.size)
    if (last := member.offset + member.size) > end:
        raise BrokenTarError(
            f"it breaks off in {name}: {last - begin:,} bytes are needed up to its end, {end - begin:,} are there"
        )
    return member


def _wrong_end(file: int, rest: int, end: int, size: int) -> str:
    """What is wrong with the bytes from `rest` on, where tarfile sees the end of an archive of `size` bytes; empty:
    nothing. tarfile takes a damaged header for the end, and any zeros: of a file that was given its size before it was
    downloaded, or that lost a page."""
    num_left = max(0, end - rest)
    data = os.pread(file, min(num_left, max(_RECORDS) + _END), rest)
    if (block := data[:_BLOCK]) != bytes(_BLOCK):
        return "has no header there" if len(block) == _BLOCK else "breaks off there"
    if data.strip(b"\0"):
        return "has zeros there, and something after them"
    if any(size % record == 0 and num_left < record + _END for record in _RECORDS):
        return ""
    return f"has {num_left:,} bytes left there, which begin with zeros and are more than the end of an archive takes"
