"""Choose the library that decodes JPEGs on this machine.

All of these libraries use libjpeg-turbo with its exact arithmetic, and return the same pixels (test_jpeg_backends.py
bounds the difference). They differ in speed, and in the parts of an image that they can skip (docs/data.md).
"""

import functools
import importlib
import warnings
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

    def rgb(self, data: bytes | bytearray) -> np.ndarray:
        """Decode a whole JPEG to uint8 (H, W, 3), RGB. A broken file may raise any exception."""
        ...

    def rgb_scaled(self, data: bytes | bytearray, height: int, width: int) -> np.ndarray:
        """Decode at full size, 1/2, 1/4 or 1/8 of it, but no smaller than height × width. Reduced sizes are faster,
        because they need fewer coefficients."""
        ...


class SimpleJpeg:
    ends_early = True

    def __init__(self) -> None:
        self._decode = importlib.import_module("simplejpeg").decode_jpeg

    def rgb(self, data: bytes | bytearray) -> np.ndarray:
        return self._decode(data, strict=False)

    def rgb_scaled(self, data: bytes | bytearray, height: int, width: int) -> np.ndarray:
        return self._decode(data, strict=False, min_height=height, min_width=width, min_factor=1)


class Pillow:
    ends_early = False

    def rgb(self, data: bytes | bytearray) -> np.ndarray:
        return np.asarray(Image.open(BytesIO(data)).convert("RGB"))

    def rgb_scaled(self, data: bytes | bytearray, height: int, width: int) -> np.ndarray:
        image = Image.open(BytesIO(data))
        image.draft("RGB", (width, height))
        return np.asarray(image.convert("RGB"))


class TorchVision(Pillow):
    """torchvision's decoder, which decodes only at full size. Reduced sizes are decoded by Pillow. ends_early is false,
    because libjpeg would print a line for every shortened image."""

    def __init__(self) -> None:
        io = importlib.import_module("torchvision.io")
        self._decode, self._mode = io.decode_jpeg, io.ImageReadMode.RGB

    def rgb(self, data: bytes | bytearray) -> np.ndarray:
        import torch

        # torch warns about a read-only buffer
        encoded = torch.frombuffer(data if isinstance(data, bytearray) else bytearray(data), dtype=torch.uint8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchvision prints a deprecation warning for every image
            return self._decode(encoded, mode=self._mode).permute(1, 2, 0).numpy()


_MAKERS = {"simplejpeg": SimpleJpeg, "torchvision": TorchVision, "pillow": Pillow}  # from fastest to slowest
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
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"data.decoder={name} cannot be used ({first_line(error)}). Hint: run `{install(name)}`, or set "
            "data.decoder=auto."
        ) from error


@functools.cache
def choose(option: str) -> Choice:
    """Choose the decoder according to data.decoder; auto: the fastest decoder that works on this machine. Raises
    ConfigError if the decoder that data.decoder names does not work."""
    if option != "auto":
        decoder(option)
        return Choice(option, f"{option}, as set by data.decoder")
    missing = []
    for name in NAMES:
        try:
            decoder(name)
        except ConfigError:
            missing.append(name)
            continue
        version = "" if name == "torchvision" else f" {metadata.version(name)}"
        slower = f"{', '.join(missing)} cannot be used here" if missing else "the fastest decoder"
        return Choice(name, f"{name}{version}: {slower}")
    raise AssertionError("Pillow always works")
