"""Decode image files. A Picture decodes only the requested region. UnreadableImage names a file that cannot be decoded.
The format is detected from the bytes, not from the extension.

JPEGs are decoded by the fastest decoder (jpeg.py), all other formats by Pillow. Unusual JPEGs (four colour components,
twelve bits per sample, truncated) are also decoded by Pillow, which supports more of them.

This module imports torch only to make a tensor, because the checks before a run use it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from imagenet_ddp.data.jpeg import JpegPicture, choose, read_header
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
        return JpegPicture(data, path, header, choose(reading.decoder).name)
    return Pixels(decode_pillow(data, path, reading.exif_orientation))


def decode(data: bytes, path: str, reading: Reading = DEFAULT) -> "Tensor":
    """Decode a whole image to uint8 (3, H, W), RGB. path: shown in messages. Raises UnreadableImage."""
    return decode_whole(open_picture(data, path, reading))


def decode_whole(picture: Picture) -> "Tensor":
    """Decode the whole picture to a writable uint8 tensor (3, H, W), RGB. Raises UnreadableImage."""
    import torch

    pixels = picture.region(0, 0, picture.height, picture.width)
    return torch.from_numpy(pixels if pixels.flags.writeable else pixels.copy()).permute(2, 0, 1)
