"""MATLAB's level 5 files, as far as ImageNet's meta.mat needs: numbers, text, cells and structs, compressed or not.

scipy.io.loadmat reads all of them, but nothing else here needs scipy. The format: MathWorks, "MAT-File Format", chapter
1, "Level 5 MAT-File Format".
"""

import struct
import zlib
from math import prod
from typing import Any

import numpy as np

MAX_BYTES = 2**28  # of one variable; meta.mat's is a few MiB
_HEADER_BYTES = 128
_COMPRESSED, _MATRIX = 15, 14
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_TEXTS = {16: "utf-8", 17: "utf-16", 18: "utf-32"}  # those of other types are one number per character
_CELL, _STRUCT, _CHAR = 1, 2, 4
_FIRST_NUMERIC, _LAST_NUMERIC = 6, 15


class MatlabError(Exception):
    """The bytes are no such file, or it holds more than this reader knows. The text completes "the file ..."."""


def read(data: bytes) -> dict[str, Any]:
    """Name of variable -> value: a number array flat as stored (column by column), text as str, a cell array as list, a
    struct array as list of dicts. Raises MatlabError."""
    try:
        if data[124:128] != b"\x00\x01IM":  # version 1.0, written by a little-endian machine
            raise MatlabError("is no MATLAB 5.0 file of a little-endian machine")
        found, place = {}, _HEADER_BYTES
        while place + 8 <= len(data):
            kind, content, place = _element(data, place)
            if kind == _COMPRESSED:
                unpacked = zlib.decompressobj()
                plain = unpacked.decompress(content, MAX_BYTES)
                if not unpacked.eof:
                    raise MatlabError("breaks off, or holds more than this reader takes")
                kind, content, _ = _element(plain, 0)
            if kind == _MATRIX:
                name, value = _matrix(content)
                found[name] = value
        return found
    except (struct.error, zlib.error, ValueError, IndexError) as error:
        raise MatlabError(f"cannot be read: {error}") from error


def _element(data: bytes, place: int) -> tuple[int, bytes, int]:
    """(type, content, where the next one begins)."""
    word, num_bytes = struct.unpack_from("<II", data, place)
    if word >> 16:  # the small form: type, size and up to four bytes in eight
        kind, num_bytes = word & 0xFFFF, word >> 16
        return kind, data[place + 4 : place + 4 + num_bytes], place + 8
    end = place + 8 + num_bytes
    if end > len(data):
        raise MatlabError(f"breaks off: {end} bytes are expected, {len(data)} are there")
    return word, data[place + 8 : end], end if word == _COMPRESSED else end + -num_bytes % 8


def _matrix(content: bytes) -> tuple[str, Any]:
    """(name, value)."""
    if not content:  # MATLAB's short form of []
        return "", np.zeros(0)
    _, flags, place = _element(content, 0)
    _, sizes, place = _element(content, place)
    _, name, place = _element(content, place)
    kind, num = flags[0], prod(struct.unpack(f"<{len(sizes) // 4}i", sizes))
    if kind == _CELL:
        return name.decode(), _matrices(content, place, num)
    if kind == _STRUCT:
        _, width, place = _element(content, place)
        _, names, place = _element(content, place)
        (step,) = struct.unpack("<i", width)
        fields = [names[at : at + step].partition(b"\0")[0].decode() for at in range(0, len(names), step)]
        values = _matrices(content, place, num * len(fields))
        rows = range(0, len(values), max(len(fields), 1))
        return name.decode(), [dict(zip(fields, values[at : at + len(fields)], strict=True)) for at in rows]
    if kind != _CHAR and not _FIRST_NUMERIC <= kind <= _LAST_NUMERIC:
        raise MatlabError(f"holds an array of class {kind}, which is unknown here")
    stored, real, _ = _element(content, place) if num else (9, b"", 0)
    if kind == _CHAR:
        if stored in _TEXTS:
            return name.decode(), real.decode(f"{_TEXTS[stored]}-le" if stored > 16 else "utf-8")
        return name.decode(), "".join(map(chr, np.frombuffer(real, "<" + _NUMBERS.get(stored, "u2"))))
    if stored not in _NUMBERS:
        raise MatlabError(f"holds numbers of type {stored}, which is unknown here")
    return name.decode(), np.frombuffer(real, "<" + _NUMBERS[stored])


def _matrices(content: bytes, place: int, num: int) -> list[Any]:
    found = []
    for _ in range(num):
        kind, inner, place = _element(content, place)
        if kind != _MATRIX:
            raise MatlabError(f"must hold an array at byte {place}, but holds a {kind}")
        found.append(_matrix(inner)[1])
    return found
