"""One image of a source -> its bytes in a packed folder."""

import io
import zlib
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import torch
from PIL import Image, features
from torch.nn.functional import interpolate

from imagenet_ddp.data.decoding import jpeg_backends
from imagenet_ddp.data.decoding.image import JpegPicture, Picture, Pixels, UnreadableImage, open_picture
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.folder.images import FileImages


@dataclass(frozen=True)
class Packing:
    """What becomes of an image. short_side: pixels, never enlarged; 0: as it is."""

    form: str  # jpeg or raw
    short_side: int
    quality: int


@dataclass(frozen=True)
class Packed:
    """data: empty where the image could not be read, reason then says why."""

    data: bytes
    height: int
    width: int
    crc32: int
    source_bytes: int  # what it took before
    reason: str = ""


def pack(images: Images, index: int, packing: Packing) -> Packed:
    try:
        return _pack(images, index, packing)
    except UnreadableImage as error:
        return Packed(b"", 0, 0, 0, 0, error.reason)
    except OSError as error:
        return Packed(b"", 0, 0, 0, 0, error.strerror or str(error))


def _pack(images: Images, index: int, packing: Packing) -> Packed:
    encoded, picture = _open(images, index)
    pixels = picture.region(0, 0, picture.height, picture.width)  # decoded even where bytes are kept: are they whole?
    keeps_size = not packing.short_side or min(pixels.shape[:2]) <= packing.short_side
    kept = encoded if keeps_size and isinstance(picture, JpegPicture) else None
    pixels = pixels if keeps_size else resize(pixels, packing.short_side)
    if packing.form == "raw":
        data = np.ascontiguousarray(pixels).tobytes()
    elif kept is not None and not packing.short_side:
        data = kept
    else:
        data = _jpeg(pixels, packing.quality)
        if kept is not None and len(kept) <= len(data):
            data = kept  # encoding it once more would lose, and save nothing
    size = len(encoded) if encoded is not None else picture.height * picture.width * 3
    return Packed(data, pixels.shape[0], pixels.shape[1], zlib.crc32(data), size)


def _open(images: Images, index: int) -> tuple[bytes | None, Picture]:
    """(the file it came from, if there is one; the image)"""
    if isinstance(images, FileImages):
        encoded = images.encoded(index)
        return encoded, open_picture(encoded, images.path(index), images.reading)
    picture = images.open(index)
    return (images.encoded(index) if images.is_encoded and not isinstance(picture, Pixels) else None), picture


def resize(pixels: np.ndarray, short_side: int) -> np.ndarray:
    """uint8 (H, W, 3) to the short side given, in pixels. Antialiased bicubic of torch: an eighth of the time of
    Pillow's Lanczos (docs/performance.md)."""
    height, width = pixels.shape[:2]
    factor = short_side / min(height, width)
    size = max(round(height * factor), short_side), max(round(width * factor), short_side)
    image = torch.from_numpy(np.array(pixels)).permute(2, 0, 1)[None]
    small = interpolate(image, size, mode="bicubic", antialias=True)
    return small[0].permute(1, 2, 0).contiguous().numpy()


def _jpeg(pixels: np.ndarray, quality: int) -> bytes:
    """4:2:0, with a restart marker after each row of blocks: a decoder can begin at any of them (jpeg_bitstream.py)."""
    buffer = io.BytesIO()
    try:
        Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, subsampling=2, restart_marker_rows=1)
    except (OSError, ValueError) as error:  # more than 65,500 pixels on one side
        raise UnreadableImage("", f"it cannot be encoded as a JPEG: {error}") from error
    return buffer.getvalue()


def encoder(decoder: str) -> str:
    """Which libraries decide about the bytes. decoder: data.decoder."""
    pillow = f"Pillow {version('pillow')}, libjpeg-turbo {features.version('libjpeg_turbo') or 'of the system'}"
    return f"{pillow}; decoder {jpeg_backends.choose(decoder).name}; torch {torch.__version__.partition('+')[0]}"
