"""Decode images with Pillow, which reads more formats than the JPEG decoder, and convert their pixels.

Each pixel type is converted to 8-bit RGB by one rule for every command:

| pixels | rule |
|---|---|
| 1 to 8 bits, palette, CMYK, YCbCr | Pillow's conversion |
| grey, integers of more than 8 bits | scaled from the range of 8, 12 or 16 bits, the smallest that holds all values |
| grey, floating point | values up to 1 are scaled from 0..1; a largest value from 16 on: as integers |
| grey, negative, not finite or above 65535 | refused |
| grey, floating point with a largest value below 1/255, which would be black, or between 1 and 16 | refused |
| colour, 16 bits per channel | the upper 8 bits; refused if the values have only 12 bits, which would be black |
| with an alpha channel | the colours are kept, the alpha channel is ignored |
| several frames or pages | the first one |
"""

import io
import re
import warnings
from contextlib import suppress

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from imagenet_ddp.data.unreadable_images import UnreadableImage
from imagenet_ddp.system.text import first_line

# Pillow's own limit for "decompression bombs", checked here because another library may have lifted that limit. An
# image of this size takes 540 MB when it is decoded.
MAX_PIXELS = 178_956_970
RANGES = (255, 4095, 65535)  # largest value of 8, 12 and 16 bits
LEAST_OF_12_BITS = 16  # of the upper eight bits; 12-bit colours stored in 16 bits are below it
WIDE = ("I", "F")  # modes of more than 8 bits; I;16B and other variants begin with I


def decode_pillow(data: bytes, path: str, exif_orientation: bool) -> np.ndarray:
    """Decode any format that Pillow reads to uint8 (H, W, 3), RGB. Raises UnreadableImage."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about decompression bombs, unusual EXIF data and palettes
            image = Image.open(io.BytesIO(data))  # reads the header only
            if image.width * image.height > MAX_PIXELS:
                raise Image.DecompressionBombError
            # of which Pillow keeps eight; known only until the image is loaded
            has_16_bits = any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))
            image.load()  # must come first: Pillow rotates a TIFF while loading it, and then drops its orientation tag
            if exif_orientation:
                with suppress(Exception):  # if the EXIF data is broken, the pixels are used as stored
                    image = ImageOps.exif_transpose(image)
            return _grey(np.asarray(image)) if image.mode.startswith(WIDE) else _colours(image, has_16_bits)
    except Exception as error:  # Pillow's plugins raise many types: SyntaxError, struct.error, ZeroDivisionError
        raise UnreadableImage(path, _reason(error)) from error


def is_rotated(header: bytes) -> bool:
    """Return whether the EXIF data in the header of a JPEG turn or mirror its pixels."""
    if (begin := header.find(b"Exif\0\0")) < 0:
        return False
    exif = Image.Exif()
    with suppress(Exception):  # if the EXIF data is broken, the pixels are used as stored
        exif.load(header[begin:])
        return exif.get(ExifTags.Base.Orientation, 1) in range(2, 9)
    return False


def _reason(error: Exception) -> str:
    """Return the decoder's message without memory addresses."""
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image in a known format"
    if isinstance(error, Image.DecompressionBombError):
        return f"it has more than {MAX_PIXELS:,} pixels"
    return re.sub(r"<[^<>]* at 0x[0-9a-fA-F]+>", "the file", first_line(error))


def _colours(image: Image.Image, has_16_bits: bool) -> np.ndarray:
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # otherwise Pillow warns and drops the palette's alpha channel
    pixels = np.array(image.convert("RGB"))
    if has_16_bits and pixels.size and pixels.max() < LEAST_OF_12_BITS:
        raise ValueError(
            "its colours have 16 bits per channel but use at most 12 of them, so it would be black; store 8 bits, or "
            "the whole range of 16 bits"
        )
    return pixels


def _grey(values: np.ndarray) -> np.ndarray:
    """Scale grey values of more than 8 bits to 0..255."""
    least, most = (float(end) for end in (values.min(), values.max())) if values.size else (0.0, 0.0)
    is_float = values.dtype.kind == "f"
    if (
        not np.isfinite(least + most)
        or least < 0
        or most > RANGES[-1]
        or (is_float and (0 < most < 1 / 255 or 1 < most < 16))
    ):
        raise ValueError(
            f"its pixels are {'floating-point numbers' if is_float else 'integers'} from {least:g} to {most:g}, and "
            f"which of them is white is unknown; store {'0 to 1, ' if is_float else ''}0 to 255 or 0 to 65535"
        )
    white = 1 if is_float and most <= 1 else next(largest for largest in RANGES if most <= largest)
    grey = np.rint(values.astype(np.float32) * (255 / white)).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)
