"""Decode images with Pillow, which reads more formats than the JPEG decoders, and name files that cannot be read."""

import io
import re
import warnings
from contextlib import suppress

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from imagenet_ddp.data.decoding.pixel_types import assumptions, is_deep_colour, to_rgb
from imagenet_ddp.system.text import first_line

# Pillow's own limit for "decompression bombs", checked here because another library may have lifted that limit. An
# image of this size takes 540 MB when it is decoded.
MAX_PIXELS = 178_956_970


class UnreadableImage(Exception):
    """Raised for an image that cannot be decoded. path, reason: shown in messages. Loader workers pickle the exception,
    so both are in args."""

    def __init__(self, path: str, reason: str):
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path} cannot be read as an image: {self.reason}"


def decode_pillow(data: bytes, path: str, exif_orientation: bool) -> np.ndarray:
    """Decode any format that Pillow reads to uint8 (H, W, 3), RGB. Raises UnreadableImage."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about decompression bombs, unusual EXIF data and palettes
            image = Image.open(io.BytesIO(data))  # reads the header only
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise Image.DecompressionBombError
            is_deep = is_deep_colour(image)
            image.load()  # must come first: Pillow rotates a TIFF while loading it, and then drops its orientation tag
            if exif_orientation:
                with suppress(Exception):  # if the EXIF data is broken, the pixels are used as stored
                    image = ImageOps.exif_transpose(image)
            return to_rgb(image, is_deep=is_deep)
    except Exception as error:  # Pillow's plugins raise many types: SyntaxError, struct.error, ZeroDivisionError
        raise UnreadableImage(path, _reason(error)) from error


def _reason(error: Exception) -> str:
    """Return the decoder's message without memory addresses."""
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image in a known format"
    if isinstance(error, Image.DecompressionBombError):
        return f"it has more than {MAX_PIXELS:,} pixels"
    return re.sub(r"<[^<>]* at 0x[0-9a-fA-F]+>", "the file", first_line(error))


def assumed(data: bytes) -> list[str]:
    """Return what decode_pillow assumes about a readable image (pixel_types.assumptions)."""
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")
        return assumptions(Image.open(io.BytesIO(data)))
    return []
