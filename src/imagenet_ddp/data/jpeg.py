"""Decode regions of ordinary JPEGs with simplejpeg or, if that has no wheel for this machine, with Pillow.

Both use libjpeg-turbo with its exact arithmetic, and return the same pixels (test_jpeg.py bounds the difference).

A decoder processes an image one row of blocks at a time. A smaller height in the header ends it below the crop, and the
pixels are exactly those of the whole image. That makes loading files 13 % faster (ResNet's random crops of ImageNet).
Source of the format: ITU-T T.81, annexes B and F.
"""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from io import BytesIO
from typing import NamedTuple

import numpy as np
from PIL import Image

from imagenet_ddp.data.pillow import decode_pillow
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import first_line, install

EOI, SOS = 0xD9, 0xDA
RST0 = 0xD0
SOF = frozenset((0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF))
MOST_FILL = 1000  # bytes of 0xFF before a marker; the standard sets no limit, but millions of them are an attack
SEQUENTIAL = (0xC0, 0xC1)  # Huffman-coded, one pass over the image
BLOCK = 8  # side of a block in pixels
NAMES = ("simplejpeg", "pillow")

# Called with a file and, to decode at 1/2, 1/4 or 1/8 of the size, the least height and width, which is faster, because
# it needs fewer coefficients. Returns uint8 (H, W, 3), RGB. A broken file may raise any exception.
Decoder = Callable[[bytes | bytearray, int, int], np.ndarray]


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
    position, frame, fill = 2, None, 0
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
    return Header(
        height=height,
        width=width,
        num_components=num_components,
        precision=precision,
        height_at=at + 5,
        # a scan of one component is not interleaved: its unit is a single block
        row_height=BLOCK * (max(each & 15 for each in sampling) if num_components > 1 else 1),
        data_at=position + 2 + length,
        is_one_pass=kind in SEQUENTIAL and data[position + 4] == num_components,
    )


def until(data: bytes, header: Header, bottom: int) -> tuple[bytearray, int] | None:
    """Return (data, height) of a JPEG that ends at or shortly below row `bottom`, or None if that saves nothing. The
    decoder must be told to ignore the remaining data after the last row."""
    # a chroma row that covers several image rows is interpolated with its neighbours
    margin = header.row_height if header.row_height > BLOCK else 0
    height = -(-bottom // header.row_height) * header.row_height + margin
    if height + header.row_height > header.height:
        return None
    shorter = bytearray(data)
    shorter[header.height_at : header.height_at + 2] = height.to_bytes(2, "big")
    return shorter, height


class JpegPicture:
    """An ordinary JPEG: one or three colour components of eight bits, and an end-of-image marker."""

    def __init__(self, data: bytes, path: str, header: Header, name: str):
        """name: of the decoder."""
        self._data, self._path, self._header, self._name = data, path, header, name
        self.height, self.width = header.height, header.width

    def region(self, top: int, left: int, height: int, width: int, size: int = 0) -> np.ndarray:
        try:
            return self._region(top, left, height, width, size)
        except Exception:  # decoders raise exceptions of many types
            # Pillow may decode a file that this decoder rejects, or raise an error with a better message
            return decode_pillow(self._data, self._path, False)[top : top + height, left : left + width]

    def _region(self, top: int, left: int, height: int, width: int, size: int) -> np.ndarray:
        data, rows, decode = self._data, self.height, decoder(self._name)
        # in a progressive JPEG, each scan contributes to every row; Pillow rejects data after the last row
        if self._header.is_one_pass and self._name == "simplejpeg":
            data, rows = until(self._data, self._header, top + height) or (data, rows)
        factor = _scale(height, width, size)
        if factor == 1:
            return _at_least(decode(data, 0, 0), rows, self.width)[top : top + height, left : left + width]
        small = rows // factor, self.width // factor
        found = _at_least(decode(data, *small), *small)
        up, down = _edges(top, height, found.shape[0] / rows, size, found.shape[0])
        near, far = _edges(left, width, found.shape[1] / self.width, size, found.shape[1])
        return found[up:down, near:far]


def _edges(begin: int, length: int, scale: float, least: int, most: int) -> tuple[int, int]:
    """Multiply the edges of a crop by `scale`, and round them to whole pixels from 0 to `most` that are at least
    `least` apart."""
    first, last = round(begin * scale), round((begin + length) * scale)
    first = max(min(first, last - least, most - least), 0)
    return first, min(max(last, first + least), most)


def _at_least(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    if pixels.shape[0] < height or pixels.shape[1] < width:
        raise ValueError("its size differs from the size in its header")
    return pixels


def _scale(height: int, width: int, size: int) -> int:
    """Return the largest factor (8, 4, 2 or 1) by which a decoder may shrink a crop that must not become smaller than
    size × size."""
    if not size:
        return 1
    return next((factor for factor in (8, 4, 2) if min(height, width) >= factor * size), 1)


class Choice(NamedTuple):
    name: str
    reason: str  # shown in the log


@functools.cache
def choose(option: str) -> Choice:
    """Choose the decoder according to data.decoder; auto: the faster one, if it works on this machine. Raises
    ConfigError if the decoder that data.decoder names does not work."""
    if option != "auto":
        decoder(option)
        return Choice(option, f"{option}, as set by data.decoder")
    try:
        decoder("simplejpeg")
    except ConfigError:
        return Choice("pillow", f"pillow {metadata.version('pillow')}: simplejpeg cannot be used here")
    return Choice("simplejpeg", f"simplejpeg {metadata.version('simplejpeg')}: the fastest decoder")


@functools.cache
def decoder(name: str) -> Decoder:
    """Return the decoder, which is imported once per process. Raises ConfigError if it cannot be imported."""
    if name == "pillow":
        return _pillow
    try:
        decode = importlib.import_module("simplejpeg").decode_jpeg
    except (ImportError, AttributeError, OSError) as error:
        raise ConfigError(
            f"data.decoder={name} cannot be used ({first_line(error)}). Hint: run `{install(name)}`, or set "
            "data.decoder=auto."
        ) from error

    def simplejpeg(data: bytes | bytearray, height: int, width: int) -> np.ndarray:
        scale = {"min_height": height, "min_width": width, "min_factor": 1} if height else {}
        return decode(data, strict=False, **scale)

    return simplejpeg


def _pillow(data: bytes | bytearray, height: int, width: int) -> np.ndarray:
    image = Image.open(BytesIO(data))
    if height:
        image.draft("RGB", (width, height))
    return np.asarray(image.convert("RGB"))
