"""Decode images with Pillow, which reads more formats than the JPEG decoder, and convert their pixels.

Each pixel type is converted to 8-bit RGB by one rule for every command:

| pixels | rule |
|---|---|
| 1 to 8 bits, palette, CMYK, YCbCr | Pillow's conversion |
| grey of more than 8 bits | scaled from 0..white as stated by the file (not by 16 bits), or data.white_level |
| grey, integers of more than 8 bits | scaled from 0..65535; refused if no value is above 4095: white is unknown |
| grey, floating point | values up to 1 are scaled from 0..1, others as integers |
| grey, negative, not finite or above white | refused |
| grey, floating point with a largest value below 1/255, which would be black | refused |
| grey TIFF whose 0 is white | inverted, as Pillow does up to 8 bits |
| colour, 16 bits per channel | the upper 8 bits; refused if the values have only 12 bits, which would be black |
| TIFF of more than 8 bits with one plane per channel | refused if not compressed: Pillow would read other pixels |
| with an alpha channel | the colours are kept, the alpha channel is ignored |
| several frames or pages | the first one |
"""

import io
import re
import warnings
from contextlib import suppress
from enum import IntFlag
from typing import Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.decoding.heic import heic_formats, install_heic, is_heic, reads_heic
from imagenet_ddp.system.text import first_line

# Pillow's own limit for "decompression bombs", checked here because another library may have lifted that limit. An
# image of this size takes 540 MB when it is decoded.
MAX_PIXELS = 178_956_970
# Formats of photographs. Pillow reads more, but some start programs (EPS: gs) or read what no picture needs.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "DIB", "PPM", "TIFF", "WEBP", "AVIF", "JPEG2000")
WHITE = 65535  # of 16 bits, without data.white_level
OF_12_BITS = 4095  # an image with no larger value may have fewer bits, and would then be nearly black
LEAST_OF_12_BITS = 16  # of the upper eight bits; 12-bit colours stored in 16 bits are below it
TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
WIDE = ("I", "F")  # modes of more than 8 bits; I;16B and other variants begin with I


class Ignored(IntFlag):
    """Parts of a file that are not used. A JPEG has none: its further frames are previews and depth maps."""

    NONE = 0
    PAGES = 1
    TRANSPARENCY = 2


IGNORED_WORDS = {
    Ignored.PAGES: "with several frames or pages, of which the first is used",
    Ignored.TRANSPARENCY: "with fully transparent pixels, whose colours are used and whose transparency is not",
}


class Decoded(NamedTuple):
    """pixels: uint8 (H, W, 3), RGB."""

    pixels: np.ndarray
    ignored: Ignored


def decode_pillow(data: bytes, path: str, exif_orientation: bool, white_level: float | None = None) -> Decoded:
    """Decode any of FORMATS. white_level: value of white in grey images of more than 8 bits, one for all images of a
    data set, so that their brightness can be compared; None: see the table above. Raises UnreadableImage."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about decompression bombs, unusual EXIF data and palettes
            image = Image.open(io.BytesIO(data), formats=(*FORMATS, *heic_formats(data)))  # reads the header only
            if image.width * image.height > MAX_PIXELS:
                raise Image.DecompressionBombError
            _refuse_wide_planes(image)
            # of which Pillow keeps eight; known only until the image is loaded
            has_16_bits = any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))
            white_level = _stated_white(image) or white_level
            is_inverted = _tags(image).get(ExifTags.Base.PhotometricInterpretation) == 0
            has_pages = image.format not in ("JPEG", "MPO") and getattr(image, "is_animated", False)
            image.load()  # must come first: Pillow rotates a TIFF while loading it, and then drops its orientation tag
            if exif_orientation:
                with suppress(Exception):  # if the EXIF data is broken, the pixels are used as stored
                    image = ImageOps.exif_transpose(image)
            is_wide = image.mode.startswith(WIDE)
            pixels = _grey(np.asarray(image), white_level) if is_wide else _colours(image, has_16_bits)
            if is_wide and is_inverted:
                pixels = 255 - pixels
            ignored = Ignored.PAGES if has_pages else Ignored.NONE
            return Decoded(pixels, ignored | Ignored.TRANSPARENCY if _is_clear(image) else ignored)
    except Exception as error:  # Pillow's plugins raise many types: SyntaxError, struct.error, ZeroDivisionError
        raise UnreadableImage(path, _reason(error, data)) from error


def _tags(image: Image.Image) -> dict[int, Any]:
    """Return the tags of a TIFF, {} of another format."""
    return getattr(image, "tag_v2", {})


def _refuse_wide_planes(image: Image.Image) -> None:
    """Raise ValueError for a TIFF with one plane per channel, in more than 8 bits and not compressed: Pillow reads each
    plane as if it had 8 bits, without an error."""
    tags = _tags(image)
    is_wide = max(tags.get(ExifTags.Base.BitsPerSample, (8,))) > 8
    is_raw = any(tile[0] == "raw" for tile in getattr(image, "tile", ()))
    if is_wide and is_raw and tags.get(ExifTags.Base.PlanarConfiguration) == 2:
        raise ValueError(
            "its channels are stored one after the other, each in more than 8 bits, which cannot be read; store 8 "
            "bits, or the channels of each pixel together"
        )


def _is_clear(image: Image.Image) -> bool:
    """Return whether an image has fully transparent pixels."""
    if not image.has_transparency_data:
        return False
    alpha = (image if "A" in image.getbands() else image.convert("RGBA")).getchannel("A")
    return alpha.getextrema()[0] == 0


def _stated_white(image: Image.Image) -> float | None:
    """Return the value of white in a grey image whose file states it; None if it does not: 16 bits may hold 12."""
    if not image.mode.startswith("I"):
        return None
    if image.format in ("PPM", "JPEG2000"):  # Pillow scales their values to 16 bits
        return float(WHITE)
    bits: int = _tags(image).get(ExifTags.Base.BitsPerSample, (16,))[0]
    return None if bits in (16, 32) else float(2**bits - 1)


def is_rotated(header: bytes) -> bool:
    """Return whether the EXIF data in the header of a JPEG turn or mirror its pixels."""
    if (begin := header.find(b"Exif\0\0")) < 0:
        return False
    exif = Image.Exif()
    with suppress(Exception):  # if the EXIF data is broken, the pixels are used as stored
        exif.load(header[begin:])
        return exif.get(ExifTags.Base.Orientation, 1) in range(2, 9)
    return False


def _reason(error: Exception, data: bytes) -> str:
    """Return why an image cannot be decoded, in plain words, or the decoder's without memory addresses."""
    if isinstance(error, UnidentifiedImageError):
        if is_heic(data) and not reads_heic():
            return f"it is a HEIC file, whatever its name; to read it, run `{install_heic()}`"
        if data.startswith(TIFF_STARTS):
            return (
                "it is a TIFF that is damaged or of a kind that cannot be read, such as one of 64-bit numbers or five "
                "channels; store it as grey or RGB, in 8 or 16 bits"
            )
        return "it is not an image in a known format"
    if isinstance(error, Image.DecompressionBombError):
        return f"it has more than {MAX_PIXELS:,} pixels"
    if damage := re.search(r"truncated|data stream", str(error), re.IGNORECASE):
        return f"the file is damaged{'' if damage[0] == 'data stream' else ': its end is missing or empty'}"
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


def _grey(values: np.ndarray, white_level: float | None) -> np.ndarray:
    """Scale grey values of more than 8 bits to 0..255."""
    least, most = (float(end) for end in (values.min(), values.max())) if values.size else (0.0, 0.0)
    is_float = values.dtype.kind == "f"
    white = white_level or (1.0 if is_float and most <= 1 else float(WHITE))
    what = f"its pixels are {'floating-point numbers' if is_float else 'integers'} from {least:g} to {most:g}"
    if not np.isfinite(least + most) or least < 0 or most > white * (1 + 1e-6):  # 0.1 is more in float32
        limit = f"{white:g} (data.white_level)" if white_level else f"{white:g}"
        raise ValueError(f"{what}, which must be within 0 to {limit}; set data.white_level to the value of white")
    is_dark = most <= OF_12_BITS if white == WHITE else most < 1 / 255
    if white_level is None and most and is_dark:
        wholes = [str(level) for level in (65535, 4095, 255) if level >= most]
        examples = " or ".join(wholes) if white == WHITE else "0.004"
        raise ValueError(
            f"{what}, and which value is white is unknown; set data.white_level, such as {examples}, for all images"
        )
    grey = np.rint(values.astype(np.float32) * (255 / white)).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)
