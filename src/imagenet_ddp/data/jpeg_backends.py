"""Choose the library that decodes JPEGs on this machine: simplejpeg or, if that has no wheel for it, Pillow.

Both use libjpeg-turbo with its exact arithmetic, and return the same pixels (test_jpeg_backends.py bounds the
difference).
"""

import functools
import importlib
from dataclasses import dataclass
from importlib import metadata
from io import BytesIO
from typing import Protocol

import numpy as np
from PIL import Image

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import first_line, install


class Decoder(Protocol):
    """A JPEG decoder. ends_early: whether it accepts a JPEG whose header declares fewer rows than the file has
    (jpeg_bitstream.until)."""

    ends_early: bool

    def rgb(self, data: bytes | bytearray, height: int = 0, width: int = 0) -> np.ndarray:
        """Decode a JPEG to uint8 (H, W, 3), RGB: at full size or, if height and width are given, at 1/2, 1/4 or 1/8 of
        it, but no smaller than they are. That is faster, because it needs fewer coefficients. A broken file may raise
        any exception."""
        ...


class SimpleJpeg:
    ends_early = True

    def __init__(self) -> None:
        self._decode = importlib.import_module("simplejpeg").decode_jpeg

    def rgb(self, data: bytes | bytearray, height: int = 0, width: int = 0) -> np.ndarray:
        scale = {"min_height": height, "min_width": width, "min_factor": 1} if height else {}
        return self._decode(data, strict=False, **scale)


class Pillow:
    ends_early = False

    def rgb(self, data: bytes | bytearray, height: int = 0, width: int = 0) -> np.ndarray:
        image = Image.open(BytesIO(data))
        if height:
            image.draft("RGB", (width, height))
        return np.asarray(image.convert("RGB"))


_MAKERS = {"simplejpeg": SimpleJpeg, "pillow": Pillow}
NAMES = tuple(_MAKERS)


@dataclass(frozen=True)
class Choice:
    name: str
    reason: str  # shown in the log


@functools.cache
def decoder(name: str) -> Decoder:
    """Return the decoder, which is imported once per process. Raises ConfigError if it cannot be imported."""
    try:
        return _MAKERS[name]()
    except (ImportError, AttributeError, OSError) as error:
        raise ConfigError(
            f"data.decoder={name} cannot be used ({first_line(error)}). Hint: run `{install(name)}`, or set "
            "data.decoder=auto."
        ) from error


@functools.cache
def choose(option: str) -> Choice:
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
