"""What a tar archive holds, or a tar inside a tar, by headers alone: names, and where the bytes lie. Nothing is
unpacked, and an archive that breaks off is told from one that ends."""

import io
import os
import tarfile
from dataclasses import dataclass

_BLOCK = 512  # bytes; a tar is made of such blocks, and ends with blocks of zeros


class BrokenTarError(Exception):
    """The text completes "the archive is expected to be whole, but ..."."""


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


def members(file: int, begin: int, end: int) -> list[Member]:
    """The plain files of the tar between two places of an open file, in their order. Raises BrokenTarError."""
    found: list[Member] = []
    try:
        with tarfile.open(fileobj=_Section(file, begin, end), mode="r:") as tar:
            while (info := tar.next()) is not None:
                if info.isreg():
                    member = Member(info.name.rpartition("/")[2], begin + info.offset_data, info.size)
                    found.append(member)
                    if (last := member.offset + member.size) > end:
                        raise BrokenTarError(
                            f"it breaks off in {member.name}: {last - begin:,} bytes are needed up to its end, "
                            f"{end - begin:,} are there"
                        )
                tar.members = []  # type: ignore[attr-defined]  # else it remembers them all
            rest = begin + tar.offset
    except tarfile.TarError as error:
        if begin == end:
            raise BrokenTarError("it is empty") from error
        after = f" after {found[-1].name}" if found else ""
        raise BrokenTarError(f"it breaks off{after}, at byte {end - begin:,} ({error})") from error
    # tarfile takes a damaged header for the end
    if (block := os.pread(file, min(_BLOCK, max(0, end - rest)), rest)) != bytes(_BLOCK):
        what = "has no header there" if len(block) == _BLOCK else "breaks off there"
        raise BrokenTarError(
            f"after {len(found):,} files, at byte {rest - begin:,} of {end - begin:,}, it neither goes on nor ends: "
            f"it {what}"
        )
    return found
