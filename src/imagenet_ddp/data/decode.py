"""Decode image files. A Picture decodes only the requested region. UnreadableImage names a file that cannot be decoded.
The format is detected from the bytes, not from the extension.

JPEGs are decoded by the fastest decoder (jpeg_backends.py), all other formats by Pillow. Unusual JPEGs (four colour
components, twelve bits per sample, truncated) are also decoded by Pillow, which supports more of them.

This module imports torch only to make a tensor, because the checks before a run use it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from imagenet_ddp.data import jpeg_backends, jpeg_bitstream
from imagenet_ddp.data.pillow import MAX_PIXELS, UnreadableImage, decode_pillow, is_rotated

if TYPE_CHECKING:
    from torch import Tensor


class Picture(Protocol):
    """An image whose regions are decoded on demand."""

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
    """Options for reading files: data.decoder and data.exif_orientation. By default, images keep the orientation in
    which they are stored, as is usual for ImageNet."""

    decoder: str = "auto"
    exif_orientation: bool = False  # true: rotate and mirror images according to their EXIF data


DEFAULT = Reading()


class Pixels:
    """A Picture that is already decoded. pixels: uint8 (H, W, 3)."""

    def __init__(self, pixels: np.ndarray):
        self._pixels = pixels
        self.height, self.width = pixels.shape[:2]

    def region(self, top: int, left: int, height: int, width: int, size: int = 0) -> np.ndarray:
        return self._pixels[top : top + height, left : left + width]


class JpegPicture:
    """An ordinary JPEG: one or three colour components of eight bits, and an end-of-image marker."""

    def __init__(
        self,
        data: bytes,
        path: str,
        header: jpeg_bitstream.Header,
        decoder: jpeg_backends.Decoder,
    ):
        self._data, self._path, self._header, self._decoder = data, path, header, decoder
        self.height, self.width = header.height, header.width

    def region(self, top: int, left: int, height: int, width: int, size: int = 0) -> np.ndarray:
        try:
            return self._region(top, left, height, width, size)
        except Exception:  # decoders raise exceptions of many types
            # Pillow may decode a file that this decoder rejects, or raise an error with a better message
            return Pixels(decode_pillow(self._data, self._path, False)).region(top, left, height, width)

    def _region(self, top: int, left: int, height: int, width: int, size: int) -> np.ndarray:
        data, rows = self._data, self.height
        # in a progressive JPEG, each scan contributes to every row
        if self._header.is_one_pass and self._decoder.ends_early:
            data, rows = jpeg_bitstream.until(self._data, self._header, top + height) or (data, rows)
        factor = _scale(height, width, size)
        if factor == 1:
            return _at_least(self._decoder.rgb(data), rows, self.width)[top : top + height, left : left + width]
        small = rows // factor, self.width // factor
        found = _at_least(self._decoder.rgb(data, *small), *small)
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


def open_picture(data: bytes, path: str, reading: Reading = DEFAULT) -> Picture:
    """Open an image. path: shown in messages. This function raises UnreadableImage, or the Picture does when it decodes
    a region."""
    if not data:
        raise UnreadableImage(path, "the file is empty")
    header = jpeg_bitstream.read_header(data)
    if (
        header is not None
        and header.num_components in (1, 3)
        and header.precision == 8
        and jpeg_bitstream.has_end(data, header)
        and header.height * header.width <= MAX_PIXELS
        and not (reading.exif_orientation and is_rotated(data[: header.data_at]))
    ):
        decoder = jpeg_backends.decoder(jpeg_backends.choose(reading.decoder).name)
        return JpegPicture(data, path, header, decoder)
    return Pixels(decode_pillow(data, path, reading.exif_orientation))


def decode(data: bytes, path: str, reading: Reading = DEFAULT) -> "Tensor":
    """Decode a whole image to uint8 (3, H, W), RGB. path: shown in messages. Raises UnreadableImage."""
    return decode_whole(open_picture(data, path, reading))


def decode_whole(picture: Picture) -> "Tensor":
    """Decode the whole picture to a writable uint8 tensor (3, H, W), RGB. Raises UnreadableImage."""
    import torch

    pixels = picture.region(0, 0, picture.height, picture.width)
    return torch.from_numpy(pixels if pixels.flags.writeable else pixels.copy()).permute(2, 0, 1)
