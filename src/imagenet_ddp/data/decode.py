"""The bytes of an image file become a uint8 tensor (3, H, W) in RGB, or an UnreadableImage that names the file."""

import io
import re
import warnings
from typing import cast

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

try:
    from torchvision.io import ImageReadMode, decode_jpeg
except ImportError:  # announced: torchvision deprecates its decoders since 0.29
    ImageReadMode = decode_jpeg = None

MAX_PIXELS = (
    178_956_970  # Pillow's own limit for "decompression bombs", which a library may have lifted; 540 MB once decoded
)
TOO_BIG = f"it has more than {MAX_PIXELS:,} pixels"


class UnreadableImage(Exception):
    """path and reason, both for people. Pickled by loader workers, hence both in args."""

    def __init__(self, path: str, reason: str):
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path} cannot be read as an image: {self.reason}"


def decode(data: bytes, path: str) -> Tensor:
    """uint8 tensor (3, H, W), RGB. The kind of file is known by its bytes, not by its extension.

    JPEG goes through torchvision (1.5 times as fast as Pillow), all else through Pillow: torchvision's PNG decoder
    ends the process on some broken files, and it reads no BMP, TIFF, PPM, JPEG 2000 or AVIF. EXIF orientation is not
    applied, as is the custom with ImageNet. Raises UnreadableImage.
    """
    if not data:
        raise UnreadableImage(path, "the file is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow on bombs, odd EXIF and palettes; torchvision on its own future
            image = Image.open(io.BytesIO(data))  # reads the header only
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise UnreadableImage(path, TOO_BIG)
            if image.format == "JPEG" and decode_jpeg is not None and ImageReadMode is not None:
                # np.frombuffer would be read-only, which torch warns about
                encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
                return cast(Tensor, decode_jpeg(encoded, mode=ImageReadMode.RGB))
            return torch.from_numpy(_pillow_rgb(image)).permute(2, 0, 1)
    except UnreadableImage:
        raise
    except (
        Exception
    ) as error:  # Pillow's plugins raise nearly anything: OSError, SyntaxError, struct.error, ZeroDivisionError
        raise UnreadableImage(path, _reason(error)) from error


def _reason(error: Exception) -> str:
    """The decoders' own words, without the memory addresses and source paths in them."""
    if isinstance(error, UnidentifiedImageError):
        return "it is no image of a known format"
    if isinstance(error, Image.DecompressionBombError):
        return TOO_BIG
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
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
