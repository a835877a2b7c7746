"""Read the headers of a JPEG, and cut some of its rows out without decoding.

A decoder processes a JPEG one row of blocks at a time. A smaller height in the header ends it below the crop, and with
a restart marker after each row, as packed images have, those above the crop are left out, too. The pixels are exactly
those of the whole image. Source of the format: ITU-T T.81, annexes B and F.
"""

from dataclasses import dataclass
from typing import NamedTuple

EOI, SOS, RST0, DRI = 0xD9, 0xDA, 0xD0, 0xDD
RESTARTS = tuple(bytes((0xFF, RST0 + number)) for number in range(8))  # in image data, only 0 follows 0xFF otherwise
SOF = frozenset((0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF))
SEQUENTIAL = (0xC0, 0xC1)  # Huffman-coded, one pass over the image
BLOCK = 8  # side of a block in pixels


@dataclass(frozen=True, slots=True)
class Header:
    height: int
    width: int
    num_components: int
    precision: int  # bits per sample
    height_at: int  # position of the height's two bytes
    row_height: int  # height in pixels of a row of blocks (MCUs)
    data_at: int  # position of the first byte of the image data
    is_one_pass: bool  # sequential, and all components in one scan
    restarts_in_rows: bool  # whether a restart marker follows each row of blocks


def read_header(data: bytes) -> Header | None:
    """Parse the headers. Return None if the file uses features that this module does not support. A decoder may still
    be able to read such a file."""
    if data[:2] != b"\xff\xd8":
        return None
    try:
        position = at = 2
        kind = marker = length = interval = 0
        while marker != SOS:
            position += length
            while data[position : position + 2] == b"\xff\xff":  # fill bytes are allowed before a marker
                position += 1
            marker = data[position + 1]
            if data[position] != 0xFF or marker == 0x01 or RST0 <= marker <= EOI:
                return None
            if marker in SOF:
                kind, at = marker, position
            if marker == DRI:
                interval = data[position + 4] << 8 | data[position + 5]
            length = 2 + (data[position + 2] << 8 | data[position + 3])
        precision, num_components = data[at + 4], data[at + 9]
        height, width = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
        sampling = [data[at + 11 + 3 * number] for number in range(num_components)]
        if not kind or not height or not width or not sampling or not all(each >> 4 and each & 15 for each in sampling):
            return None
        # a scan of one component is not interleaved: its unit is a single block
        is_single = num_components == 1
        wide, tall = (1, 1) if is_single else (max(each >> 4 for each in sampling), max(each & 15 for each in sampling))
        return Header(
            height=height,
            width=width,
            num_components=num_components,
            precision=precision,
            height_at=at + 5,
            row_height=BLOCK * tall,
            data_at=position + length,
            is_one_pass=kind in SEQUENTIAL and data[position + 4] == num_components,
            restarts_in_rows=interval == -(-width // (BLOCK * wide)),
        )
    except IndexError:
        return None


class Part(NamedTuple):
    """Rows `top` to `top + height` of a JPEG, as a JPEG. The decoder must be set to ignore data after the last row."""

    data: bytes | bytearray
    top: int
    height: int


def rows_between(data: bytes, header: Header, top: int, bottom: int) -> Part:
    """Return the rows of blocks that cover the rows `top` to `bottom`, which may lie outside the image, and those above
    if they cannot be left out. Raises ValueError if restart markers are missing."""
    size = header.row_height
    first = max(top, 0) // size if header.restarts_in_rows else 0
    last = min(-(-bottom // size), -(-header.height // size))
    begin, shorter = header.data_at, bytearray(data)
    for row in range(first):
        begin = data.index(RESTARTS[row % 8], begin) + 2
    at = begin
    for row in range(first, last - 1 if first % 8 else 0):  # number the other markers again
        at = data.index(RESTARTS[row % 8], at) + 2
        shorter[at - 1] = RST0 + (row - first) % 8
    height = min(last * size, header.height) - first * size
    shorter[header.height_at : header.height_at + 2] = height.to_bytes(2, "big")
    del shorter[header.data_at : begin]
    return Part(shorter, first * size, height)
