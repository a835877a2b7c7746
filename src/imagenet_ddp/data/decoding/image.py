"""Decode image files: a Picture decodes the region it is asked for, an UnreadableImage names the file. The format is
detected from the bytes, not from the extension.

JPEG goes through the fastest decoder (jpeg_backends.py), everything else through Pillow: torchvision's PNG decoder
crashes the process on some broken files, and reads no BMP, TIFF, PPM, JPEG 2000 or AVIF. Unusual JPEGs (four colours,
twelve bits, cut off) go to Pillow and torchvision, which support more of them.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from imagenet_ddp.data.decoding import jpeg_backends, jpeg_bitstream
from imagenet_ddp.data.decoding.pillow import MAX_PIXELS, UnreadableImage, decode_pillow


class Picture(Protocol):
    """An image whose regions are decoded on demand."""

    @property
    def height(self) -> int: ...

    @property
    def width(self) -> int: ...

    def region(self, top: int, left: int, height: int, width: int, size: int = 0) -> np.ndarray:
        """Return uint8 (height, width, 3), RGB; it may be a read-only view. size: the region will be resized to size ×
        size, so a smaller array of at least size rows and columns may be returned if that is faster. Raises
        UnreadableImage if decoding fails."""
        ...


@dataclass(frozen=True)
class Reading:
    """How files are read: data.decoder and data.exif_orientation. By default pixels are used as stored, as is usual for
    ImageNet."""

    decoder: str = "auto"
    exif_orientation: bool = False  # true: turned and mirrored as the camera noted

    @property
    def jpeg_decoder(self) -> jpeg_backends.Decoder:
        return jpeg_backends.decoder(jpeg_backends.choose(self.decoder).name)


DEFAULT = Reading()


class Pixels:
    """A Picture already decoded. pixels: uint8 (H, W, 3)."""

    def __init__(self, pixels: np.ndarray):
        self._pixels = pixels
        self.height, self.width = pixels.shape[:2]

    def region(self, top: int, left: int, height: int, width: int, size: int = 0) -> np.ndarray:
        return self._pixels[top : top + height, left : left + width]


class JpegPicture:
    """An ordinary JPEG: one or three colours of eight bits, with an end marker."""

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
            # Pillow may read what this decoder refuses, or has a better error message
            return Pixels(decode_pillow(self._data, self._path, False)).region(top, left, height, width)

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
        """Return (data, its first row, its height)."""
        if self._scan is None:  # progressive: every scan has its part in every row
            return self._data, 0, self.height
        if (banded := jpeg_bitstream.band(self._data, self._header, self._scan, top, bottom)) is not None:
            return banded
        if self._decoder.ends_early and (shorter := jpeg_bitstream.until(self._data, self._header, bottom)) is not None:
            return shorter[0], 0, shorter[1]
        return self._data, 0, self.height


def _edges(begin: int, length: int, scale: float, least: int, most: int) -> tuple[int, int]:
    """Round the edges of a crop to the nearest lines of a coarser grid, at least `least` pixels apart."""
    first, last = round(begin * scale), round((begin + length) * scale)
    first = max(min(first, last - least, most - least), 0)
    return first, min(max(last, first + least), most)


def _at_least(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    if pixels.shape[0] < height or pixels.shape[1] < width:
        raise ValueError("its size is not the one that its header names")
    return pixels


def _scale(height: int, width: int, size: int) -> int:
    """Return the factor by which a decoder may shrink a crop that becomes size × size, without falling below that
    size."""
    if not size:
        return 1
    return next((factor for factor in (8, 4, 2) if min(height, width) >= factor * size), 1)


def open_picture(data: bytes | memoryview, path: str, reading: Reading = DEFAULT) -> Picture:
    """Open an image. path: its name in messages. Raises UnreadableImage, here or when a region is decoded."""
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
    return Pixels(decode_pillow(data, path, reading.exif_orientation))


def decode(data: bytes, path: str, reading: Reading = DEFAULT) -> Tensor:
    """Decode to uint8 RGB. Raises UnreadableImage."""
    return decode_whole(open_picture(data, path, reading))


def decode_whole(picture: Picture) -> Tensor:
    """Return a writable uint8 tensor (3, H, W), RGB. Raises UnreadableImage."""
    pixels = picture.region(0, 0, picture.height, picture.width)
    return torch.from_numpy(pixels if pixels.flags.writeable else pixels.copy()).permute(2, 0, 1)
