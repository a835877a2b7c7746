"""One image looked at: whether it can be read, and what tells it from others."""

import hashlib
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from imagenet_ddp.data.decoding.image import UnreadableImage, decode
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.folder.images import FileImages

_SIDE = 9  # pixels of the small grey picture whose neighbours are compared
_CONTRAST = 6.0  # of 255: standard deviation of the small picture, below which neighbours differ by noise


class Look(NamedTuple):
    """reason: why it cannot be read; None where it can."""

    reason: str | None
    content: int = 0  # 64 bits of BLAKE2b of the file's bytes, or of what stands for a file; 0: not read
    picture: bytes = bytes(
        16
    )  # 128 bits, nearly the same for another size or quality of a picture; 0: it tells nothing
    height: int = 0
    width: int = 0


def look(images: Images, index: int) -> Look:
    """Raises nothing that an image can cause."""
    content = 0
    try:
        if isinstance(images, FileImages):
            data = images.encoded(index)
            content = _digest(data)
            pixels = decode(data, images.path(index), images.reading)
        else:
            images.verify(index)
            pixels, data = images.read(index), images.encoded(index)
            content = _digest(pixels.contiguous().numpy() if data is None else data)
        array = pixels.permute(1, 2, 0).numpy()
        return Look(None, content, picture_hash(array), *array.shape[:2])
    except UnreadableImage as error:
        return Look(error.reason, content)
    except OSError as error:
        return Look(error.strerror or str(error), content)
    except MemoryError:
        return Look("MemoryError", content)
    except Exception as error:  # a source of one's own may raise anything
        return Look(f"{type(error).__name__}: {error}", content)


def _digest(data: Any) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1


def picture_hash(pixels: np.ndarray) -> bytes:
    """pixels: uint8 (H, W, 3). The difference hash in both directions: each bit says whether a pixel of the picture at
    9 × 9 in grey is darker than its neighbour."""
    grey = Image.fromarray(np.ascontiguousarray(pixels)).convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    small = np.asarray(grey, dtype=np.int16)
    if small.std() < _CONTRAST:
        return bytes(16)
    right, down = small[:8, 1:] > small[:8, :-1], small[1:, :8] > small[:-1, :8]
    return np.packbits(np.stack([right, down]).astype(np.uint8)).tobytes()
