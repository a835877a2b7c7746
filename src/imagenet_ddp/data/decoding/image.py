"""The bytes of an image file become pixels: a Picture that gives any part of itself, or an UnreadableImage that names
the file. The kind of file is known by its bytes, not by its extension.

JPEG goes through the fastest decoder (jpeg_backends.py), all else through Pillow: torchvision's PNG decoder ends
the process on some broken files, and it reads no BMP, TIFF, PPM, JPEG 2000 or AVIF. A JPEG that is not an ordinary one
(four colours, twelve bits, cut off) is Pillow's and torchvision's too, which know more of them.
"""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from imagenet_ddp.data.decoding import jpeg_backends, jpeg_bitstream
from imagenet_ddp.system.text import first_line

MAX_PIXELS = (
    178_956_970  # Pillow's own limit for "decompression bombs", which a library may have lifted; 540 MB once decoded
)
TOO_BIG = f"it has more than {MAX_PIXELS:,} pixels"
_ORIENTATION = 0x0112  # EXIF 2.32, table 4


class UnreadableImage(Exception):
    """path and reason, both for people. Pickled by loader workers, hence both in args."""

    def __init__(self, path: str, reason: str):
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path} cannot be read as an image: {self.reason}"


class Picture(Protocol):
    """An image of which parts can be asked for. region raises UnreadableImage where decoding fails."""

    @property
    def height(self) -> int: ...

    @property
    def width(self) -> int: ...

    def region(self, top: int, left: int, height: int, width: int, size: int = 0) -> np.ndarray:
        """uint8 (height, width, 3), RGB; perhaps a view of memory that must not be written. size: it will be resized
        to size × size, so a smaller array may be given where that is faster, of no fewer than size rows and columns."""
        ...


@dataclass(frozen=True)
class Reading:
    """How files are read: data.decoder and data.exif_orientation. The default gives stored pixels, as is the custom
    with ImageNet."""

    decoder: str = "auto"
    exif_orientation: bool = False  # true: turned and mirrored as the camera noted

    @cached_property
    def jpeg_decoder(self) -> jpeg_backends.Decoder:
        return jpeg_backends.decoder(jpeg_backends.choose(self.decoder).name)

    def __getstate__(self) -> dict[str, object]:  # a loader worker imports its own
        return {"decoder": self.decoder, "exif_orientation": self.exif_orientation}


DEFAULT = Reading()


class Pixels:
    """A Picture that is decoded. pixels: uint8 (H, W, 3)."""

    def __init__(self, pixels: np.ndarray):
        self._pixels = pixels
        self.height, self.width = pixels.shape[:2]

    def region(self, top: int, left: int, height: int, width: int, size: int = 0) -> np.ndarray:
        return self._pixels[top : top + height, left : left + width]


class JpegPicture:
    """An ordinary JPEG: one or three colours of eight bits, with its end in place."""

    def __init__(
        self,
        data: bytes,
        path: str,
        header: jpeg_bitstream.Header,
        scan: jpeg_bitstream.Scan | None,
        decoder: jpeg_backends.Decoder,
    ):
        self._data, self._path, self._header, self._scan, self._decoder = data, path, header, scan, decoder
        self.height, self.width = header.height, header.width

    def region(self, top: int, left: int, height: int, width: int, size: int = 0) -> np.ndarray:
        try:
            return self._region(top, left, height, width, size)
        except Exception:  # decoders raise nearly anything
            # what this decoder refuses, Pillow may read, or say better what is wrong
            return Pixels(_by_pillow(self._data, self._path, False)).region(top, left, height, width)

    def _region(self, top: int, left: int, height: int, width: int, size: int) -> np.ndarray:
        data, first, rows = self._fewer_rows(top, top + height)
        factor = _scale(height, width, size)
        if factor == 1:
            found = _at_least(self._decoder.rgb(data), rows, self.width)
            return found[top - first : top - first + height, left : left + width]
        small = rows // factor, self.width // factor
        found = _at_least(self._decoder.rgb_scaled(data, *small), *small)
        up, down = _edges(top - first, height, found.shape[0] / rows, size, found.shape[0])
        near, far = _edges(left, width, found.shape[1] / self.width, size, found.shape[1])
        return found[up:down, near:far]

    def _fewer_rows(self, top: int, bottom: int) -> tuple[bytes | bytearray, int, int]:
        """(data, its first row, its height)"""
        if self._scan is None:  # progressive: every scan has its part in every row
            return self._data, 0, self.height
        if (banded := jpeg_bitstream.band(self._data, self._header, self._scan, top, bottom)) is not None:
            return banded
        if self._decoder.ends_early and (shorter := jpeg_bitstream.until(self._data, self._header, bottom)) is not None:
            return shorter[0], 0, shorter[1]
        return self._data, 0, self.height


def _edges(begin: int, length: int, scale: float, least: int, most: int) -> tuple[int, int]:
    """Of a crop on a coarser grid: each at the nearest of its lines, and no fewer than `least` pixels apart."""
    first, last = round(begin * scale), round((begin + length) * scale)
    first = max(min(first, last - least, most - least), 0)
    return first, min(max(last, first + least), most)


def _at_least(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    if pixels.shape[0] < height or pixels.shape[1] < width:
        raise ValueError("its size is not the one that its header names")
    return pixels


def _scale(height: int, width: int, size: int) -> int:
    """By how much a decoder may shrink a crop that becomes size × size: it must not fall below that."""
    if not size:
        return 1
    return next((factor for factor in (8, 4, 2) if min(height, width) >= factor * size), 1)


def open_picture(data: bytes | memoryview, path: str, reading: Reading = DEFAULT) -> Picture:
    """path: what the file is called before people. Raises UnreadableImage, here or when a region is asked for."""
    if not len(data):
        raise UnreadableImage(path, "the file is empty")
    data = data if isinstance(data, bytes) else bytes(data)
    header = jpeg_bitstream.read_header(data)
    if (
        header is not None
        and header.num_components in (1, 3)
        and header.precision == 8
        and header.height * header.width <= MAX_PIXELS
        and not (reading.exif_orientation and b"Exif" in data[: header.data_at])
    ):
        scan = jpeg_bitstream.read_scan(data, header) if header.is_one_pass else None
        if scan is not None or (not header.is_one_pass and jpeg_bitstream.has_end(data, header)):
            return JpegPicture(data, path, header, scan, reading.jpeg_decoder)
    return Pixels(_by_pillow(data, path, reading.exif_orientation))


def size_of(data: bytes, path: str, reading: Reading = DEFAULT) -> tuple[int, int]:
    """(height, width) of the picture, from the head of the file alone. Raises UnreadableImage."""
    header = jpeg_bitstream.read_header(data)
    if header is not None and not (reading.exif_orientation and b"Exif" in data[: header.data_at]):
        return header.height, header.width
    with _refused_as(path), Image.open(io.BytesIO(data)) as image:
        width, height = image.size
        turned = reading.exif_orientation and image.getexif().get(_ORIENTATION) in (5, 6, 7, 8)
        return (width, height) if turned else (height, width)


def decode(data: bytes, path: str, reading: Reading = DEFAULT) -> Tensor:
    """uint8 tensor (3, H, W), RGB. Raises UnreadableImage."""
    picture = open_picture(data, path, reading)
    pixels = picture.region(0, 0, picture.height, picture.width)
    return torch.from_numpy(pixels if pixels.flags.writeable else pixels.copy()).permute(2, 0, 1)


def _by_pillow(data: bytes, path: str, exif_orientation: bool) -> np.ndarray:
    """(H, W, 3) uint8"""
    with _refused_as(path):
        image = Image.open(io.BytesIO(data))  # reads the header only
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise UnreadableImage(path, TOO_BIG)
        pixels = _pillow_rgb(image)
        # asked for last: Pillow turns a TIFF while it loads it, and then forgets the number
        return _upright(pixels, image.getexif().get(_ORIENTATION, 1)) if exif_orientation else pixels


@contextmanager
def _refused_as(path: str) -> Iterator[None]:
    """What Pillow raises becomes an UnreadableImage, and its warnings (on bombs, odd EXIF and palettes) nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UnreadableImage:
        raise
    except (
        Exception
    ) as error:  # Pillow's plugins raise nearly anything: OSError, SyntaxError, struct.error, ZeroDivisionError
        raise UnreadableImage(path, _reason(error)) from error


def _upright(pixels: np.ndarray, orientation: object) -> np.ndarray:
    """Orientation 1 to 8 of EXIF 2.32: 2 to 4 mirrored and turned by half, 5 to 8 with rows and columns exchanged."""
    if orientation not in range(2, 9):
        return pixels
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def _reason(error: Exception) -> str:
    """The decoders' own words, without the memory addresses and source paths in them."""
    if isinstance(error, UnidentifiedImageError):
        return "it is no image of a known format"
    if isinstance(error, Image.DecompressionBombError):
        return TOO_BIG
    text = first_line(error)
    text = re.sub(
        r"^.*\.cpp:\d+\W+", "", text
    )  # torchvision's "decode_jpeg, /src/decode_jpeg.cpp:171, Image is incomplete"
    return re.sub(r"<[^<>]* at 0x[0-9a-fA-F]+>", "the file", text)


def _pillow_rgb(image: Image.Image) -> np.ndarray:
    """(H, W, 3) uint8. Sixteen-bit grey is scaled: Pillow's own conversion clips it to white."""
    if image.mode.startswith("I;16") or image.mode == "I":
        grey = np.asarray(image).astype(np.int64)
        grey = (grey.clip(0, 65535) + 128) // 257
        return np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # else Pillow warns and loses the palette's alpha
    return np.array(image.convert("RGB"))
