"""Parse JPEG headers, and remove rows that are not needed from a JPEG before it is decoded.

A decoder processes an image one row of blocks at a time. Two edits of the bytes avoid most of the work outside a crop,
and the decoded pixels are exactly those of the whole image:

- `until` writes a smaller height into the header, which ends decoding below the crop. It works for any JPEG with one
  scan.
- `band` also removes the rows above the crop. It needs restart markers between the rows of blocks, because the data
  after such a marker does not depend on the data before it.

Source: ITU-T T.81, annexes B and F.
"""

from dataclasses import dataclass

import numpy as np

SOI, EOI, SOS, DRI = 0xD8, 0xD9, 0xDA, 0xDD
RST0 = 0xD0
SOF = frozenset((0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF))
MOST_FILL = 1000  # bytes of 0xFF before a marker; the standard sets no limit, but millions of them are an attack
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
    blocks_per_row: int
    restart_interval: int  # blocks between two restart markers; 0: none
    data_at: int  # position of the first byte of the image data
    is_one_pass: bool  # sequential, and all components in one scan
    subsampled_rows: bool  # each chroma row covers several image rows, and is interpolated with its neighbours


def read_header(data: bytes) -> Header | None:
    """Parse the headers. Return None if the file uses features that this module does not support. A decoder may still
    be able to read such a file."""
    if data[:2] != b"\xff\xd8":
        return None
    try:
        return _read(data)
    except IndexError:
        return None


def _read(data: bytes) -> Header | None:
    position, frame, interval, fill = 2, None, 0, 0
    while True:
        if data[position] != 0xFF:
            return None
        marker = data[position + 1]
        if marker == 0xFF:  # fill bytes are allowed before a marker
            position, fill = position + 1, fill + 1
            if fill > MOST_FILL:
                return None
            continue
        if marker == 0x01 or RST0 <= marker <= EOI:
            return None
        length = data[position + 2] << 8 | data[position + 3]
        if marker in SOF:
            if frame is not None:
                return None
            frame = (marker, position)
        elif marker == DRI:
            interval = data[position + 4] << 8 | data[position + 5]
        elif marker == SOS:
            break
        position += 2 + length
    if frame is None:
        return None
    kind, at = frame
    precision, num_components = data[at + 4], data[at + 9]
    height, width = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
    sampling = [data[at + 11 + 3 * number] for number in range(num_components)]
    if not height or not width or not sampling or not all(each >> 4 and each & 15 for each in sampling):
        return None
    across, down = max(each >> 4 for each in sampling), max(each & 15 for each in sampling)
    if num_components == 1:  # a scan of one component is not interleaved: its unit is a single block
        across = down = 1
    return Header(
        height=height,
        width=width,
        num_components=num_components,
        precision=precision,
        height_at=at + 5,
        row_height=BLOCK * down,
        blocks_per_row=-(-width // (BLOCK * across)),
        restart_interval=interval,
        data_at=position + 2 + length,
        is_one_pass=kind in SEQUENTIAL and data[position + 4] == num_components,
        subsampled_rows=down > 1,
    )


@dataclass(frozen=True, slots=True)
class Scan:
    """The image data of a well-formed JPEG of one scan."""

    end: int  # position of the end-of-image marker
    restarts: list[int]  # positions of the restart markers


def read_scan(data: bytes, header: Header) -> Scan | None:
    """Find the markers in the only scan of a JPEG. Return None if there is more than one scan, or if the data is
    truncated or contains unexpected markers. In these cases the whole file must be passed to the decoder."""
    if header.data_at > len(data):
        return None
    stream = np.frombuffer(data, dtype=np.uint8, offset=header.data_at)
    at = np.flatnonzero(stream[:-1] == 0xFF)  # in image data, a byte of 0xFF is written as 0xFF00
    kinds = stream[at + 1]
    is_marker = (kinds != 0) & (kinds != 0xFF)  # 0xFF may be repeated before a marker
    at, kinds = at[is_marker], kinds[is_marker]
    is_restart = (kinds & 0xF8) == RST0
    # the number of restart markers before any other marker
    number = int(np.argmin(is_restart)) if not is_restart.all() else len(kinds)
    if number == len(kinds) or kinds[number] != EOI or not header.is_one_pass:
        return None
    blocks = -(-header.height // header.row_height) * header.blocks_per_row
    expected = -(-blocks // header.restart_interval) - 1 if header.restart_interval else 0
    if number != expected or not np.array_equal(kinds[:number] & 7, np.arange(number) % 8):
        return None
    return Scan(int(at[number]) + header.data_at, (at[:number] + header.data_at).tolist())


def has_end(data: bytes, header: Header) -> bool:
    """Return whether the file has an end-of-image marker. A file without this marker is truncated, and the decoder must
    report it."""
    return data.rfind(b"\xff\xd9", header.data_at) >= 0


def until(data: bytes, header: Header, bottom: int) -> tuple[bytearray, int] | None:
    """Return (data, height) of a JPEG that ends at or shortly below row `bottom`, or None if that saves nothing. The
    decoder must be told to ignore the remaining data after the last row."""
    margin = header.row_height if header.subsampled_rows else 0
    height = -(-bottom // header.row_height) * header.row_height + margin
    if height + header.row_height > header.height:
        return None
    return _with_height(bytearray(data), header, height), height


def band(data: bytes, header: Header, scan: Scan, top: int, bottom: int) -> tuple[bytearray, int, int] | None:
    """Return (data, first row, height) of a JPEG that has only the rows from `top` to `bottom` and some around them.
    Return None if there are no restart markers between its rows of blocks, or if the edit saves nothing."""
    if not header.restart_interval or header.restart_interval % header.blocks_per_row:
        return None
    step = header.restart_interval // header.blocks_per_row * header.row_height  # pixels between two markers
    margin = header.row_height if header.subsampled_rows else 0
    num_parts = -(-header.height // step)
    first, last = max(top - margin, 0) // step, min(-(-(bottom + margin) // step), num_parts)
    if last - first == num_parts or len(scan.restarts) != num_parts - 1:
        return None
    begins = [header.data_at, *(at + 2 for at in scan.restarts)]
    ends = [*scan.restarts, scan.end]
    cut = bytearray(data[: header.data_at]) + data[begins[first] : ends[last - 1]] + b"\xff\xd9"
    shift = header.data_at - begins[first]
    for number, marker in enumerate(ends[first : last - 1]):  # renumber them cyclically, 0 to 7
        cut[marker + shift + 1] = RST0 + number % 8
    height = min(last * step, header.height) - first * step
    return _with_height(cut, header, height), first * step, height


def _with_height(data: bytearray, header: Header, height: int) -> bytearray:
    data[header.height_at : header.height_at + 2] = height.to_bytes(2, "big")
    return data
