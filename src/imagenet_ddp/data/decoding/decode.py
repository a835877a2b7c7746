"""Decode image files. A Picture decodes only the requested region. UnreadableImage names a file that cannot be decoded.
The format is detected from the bytes, not from the extension.

Ordinary JPEGs are decoded by simplejpeg, all other files by Pillow, which also supports unusual JPEGs (four colour
components, twelve bits per sample, truncated), and which replaces simplejpeg where that has no wheel. Both use
libjpeg-turbo with its exact arithmetic, and return the same pixels (test_decode.py bounds the difference).

Of an ordinary JPEG, only the rows of the crop are decoded (jpeg.py).

This module imports torch only to make a tensor, because the checks before a run use it.
"""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from PIL import Image

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.decoding.jpeg import Header, Part, read_header, rows_between
from imagenet_ddp.data.decoding.pixel_conversion import MAX_PIXELS, Ignored, decode_pillow, is_rotated
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.packages import install
from imagenet_ddp.system.text import first_line

if TYPE_CHECKING:
    from torch import Tensor

NAMES = ("simplejpeg", "pillow")

# Called with a file and, to decode at 1/2, 1/4 or 1/8 of the size, the least height and width, which is faster, because
# it needs fewer coefficients. Returns uint8 (H, W, 3), RGB. A broken file may raise any exception.
Decoder = Callable[[bytes | bytearray, int, int], np.ndarray]


class Picture(Protocol):
    """An image whose regions are decoded on demand. ignored: parts of its file that are not used."""

    ignored: Ignored

    @property
    def height(self) -> int: ...

    @property
    def width(self) -> int: ...

    def region(self, top: int, left: int, height: int, width: int, size: int = 0) -> np.ndarray:
        """Return the region as uint8 (height, width, 3), RGB. The array may be a read-only view. size: the caller will
        resize the region to size × size, so a smaller array of at least size rows and columns may be returned if
        decoding it is faster; 0: return all pixels. Raises UnreadableImage if decoding fails."""
        ...


@dataclass(frozen=True)
class Reading:
    """Options for reading files, the keys of data.* with these names. By default, images keep the orientation in which
    they are stored, as is usual for ImageNet."""

    decoder: str = "auto"
    exif_orientation: bool = False  # true: rotate and mirror images according to their EXIF data
    white_level: float | None = None  # value of white in grey images of more than 8 bits; None: pixel_conversion.py

    @classmethod
    def of(cls, data: DataConfig) -> "Reading":
        return cls(data.decoder, data.exif_orientation, data.white_level)


DEFAULT = Reading()


class Pixels:
    """A Picture that is already decoded. pixels: uint8 (H, W, 3)."""

    def __init__(self, pixels: np.ndarray, ignored: Ignored = Ignored.NONE):
        self._pixels, self.ignored = pixels, ignored
        self.height, self.width = pixels.shape[:2]

    def region(self, top: int, left: int, height: int, width: int, size: int = 0) -> np.ndarray:
        return self._pixels[top : top + height, left : left + width]


def open_picture(data: bytes, path: str, reading: Reading = DEFAULT) -> Picture:
    """Open an image. path: shown in messages. This function raises UnreadableImage, or the Picture does when it decodes
    a region."""
    if not data:
        raise UnreadableImage(path, "the file is empty")
    header = read_header(data)
    if (
        header is not None
        and header.num_components in (1, 3)
        and header.precision == 8
        and data.rfind(b"\xff\xd9", header.data_at) >= 0  # else it is truncated, which Pillow reports
        and header.height * header.width <= MAX_PIXELS
        and not (reading.exif_orientation and is_rotated(data[: header.data_at]))
    ):
        return JpegPicture(data, path, header, choose_decoder(reading.decoder).name)
    return Pixels(*decode_pillow(data, path, reading.exif_orientation, reading.white_level))


def decode(data: bytes, path: str, reading: Reading = DEFAULT) -> "Tensor":
    """Decode a whole image to uint8 (3, H, W), RGB. path: shown in messages. Raises UnreadableImage."""
    return decode_whole(open_picture(data, path, reading))


def decode_whole(picture: Picture) -> "Tensor":
    """Decode the whole picture to a writable uint8 tensor (3, H, W), RGB. Raises UnreadableImage."""
    import torch

    pixels = picture.region(0, 0, picture.height, picture.width)
    return torch.from_numpy(pixels if pixels.flags.writeable else pixels.copy()).permute(2, 0, 1)


class JpegPicture:
    """An ordinary JPEG: one or three colour components of eight bits, and an end-of-image marker."""

    ignored = Ignored.NONE

    def __init__(self, data: bytes, path: str, header: Header, name: str):
        self._data, self._path, self._header, self._name = data, path, header, name
        self.height, self.width = header.height, header.width

    def region(self, top: int, left: int, height: int, width: int, size: int = 0) -> np.ndarray:
        try:
            return self._region(top, left, height, width, size)
        except Exception:  # decoders raise exceptions of many types
            # Pillow may decode a file that this decoder rejects, or raise an error with a better message
            pixels = decode_pillow(self._data, self._path, False).pixels
            return pixels[top : top + height, left : left + width]

    def _region(self, top: int, left: int, height: int, width: int, size: int) -> np.ndarray:
        factor, decode, part = _scale(height, width, size), decoder(self._name), Part(self._data, 0, self.height)
        # in a progressive JPEG, each scan contributes to every row; Pillow rejects data after the last row
        if self._header.is_one_pass and self._name == "simplejpeg":
            # a chroma row that covers several rows is interpolated with its neighbours, and _edges rounds
            part = rows_between(self._data, self._header, top - factor, top + height + factor)
        if factor == 1:
            pixels = _at_least(decode(part.data, 0, 0), part.height, self.width)
            return pixels[top - part.top : top - part.top + height, left : left + width]
        small, above = (part.height // factor, self.width // factor), part.top // factor
        found = _at_least(decode(part.data, *small), *small)
        up, down = _edges(top, height, factor, size, found.shape[0] + above)
        near, far = _edges(left, width, factor, size, found.shape[1])
        return found[up - above : down - above, near:far]


def _edges(begin: int, length: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """Divide the edges of a crop by `factor`, and round them to whole pixels from 0 to `most` that are at least
    `least` apart. Each decoded pixel covers exactly `factor` pixels of the image, except the last, which may cover
    fewer, so the ratio of the two sizes would be too large."""
    first, last = round(begin / factor), round((begin + length) / factor)
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
def choose_decoder(option: str) -> Choice:
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
    image = Image.open(BytesIO(data), formats=("JPEG",))
    if height:
        image.draft("RGB", (width, height))
    return np.asarray(image.convert("RGB"))
