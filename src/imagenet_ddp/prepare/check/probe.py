"""Decode one image: whether it can be read, and what identifies it."""

import hashlib
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from imagenet_ddp.data.decoding.image import UnreadableImage, decode
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.folder.images import FileImages

_SIDE = 9  # pixels of the small grey picture whose neighbours are compared
_MIN_CONTRAST = 6.0  # of 255: standard deviation of the small picture, below which neighbours differ by noise
OUT_OF_MEMORY = "MemoryError"


class Probe(NamedTuple):
    """reason: why the image cannot be read; None where it can. content_hash: 64 bits of BLAKE2b of the file's bytes, or
    of the pixels where there is no file; 0: not read. picture_hash: 128 bits, nearly the same for the picture in
    another size or quality; 0: no contrast."""

    reason: str | None
    content_hash: int = 0
    picture_hash: bytes = bytes(16)


def probe_image(images: Images, index: int) -> Probe:
    """Raises nothing that an image can cause."""
    content = 0
    try:
        if isinstance(images, FileImages):
            data = images.encoded(index)
            content = _content_hash(data)
            pixels = decode(data, images.path(index), images.reading)
        else:
            images.verify(index)
            pixels, data = images.read(index), images.encoded(index)
            content = _content_hash(pixels.contiguous().numpy() if data is None else data)
        return Probe(None, content, picture_hash(pixels.permute(1, 2, 0).numpy()))
    except UnreadableImage as error:
        return Probe(error.reason, content)
    except OSError as error:
        return Probe(error.strerror or str(error), content)
    except MemoryError:
        return Probe(OUT_OF_MEMORY, content)
    except Exception as error:  # a user's own source may raise anything
        return Probe(f"{type(error).__name__}: {error}", content)


def _content_hash(data: Any) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1


def picture_hash(pixels: np.ndarray) -> bytes:
    """Return the difference hash of uint8 (H, W, 3) in both directions: each bit compares two neighbouring pixels of
    the picture at 9 × 9 in grey."""
    grey = Image.fromarray(np.ascontiguousarray(pixels)).convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    small = np.asarray(grey, dtype=np.int16)
    if small.std() < _MIN_CONTRAST:
        return bytes(16)
    right, down = small[:8, 1:] > small[:8, :-1], small[1:, :8] > small[:-1, :8]
    return np.packbits(np.stack([right, down]).astype(np.uint8)).tobytes()
