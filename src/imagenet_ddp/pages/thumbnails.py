"""Make the small pictures of a page, which are parts of its file."""

import base64
import io

import numpy as np
from PIL import Image

from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.sources.base import Images

SIDE = 224  # pixels of a thumbnail's longer side, shown at about 160: people judge blur by them, on dense screens, too
QUALITY = 70  # of JPEG: 9 KB a thumbnail; 160 pixels of quality 80 took 6.5 KB


def thumbnail(images: Images, index: int, side: int = SIDE) -> str | None:
    """Return the data URI of an image; None if it cannot be read."""
    try:
        picture = images.open(index)
        pixels = picture.region(0, 0, picture.height, picture.width, size=side)
    except (UnreadableImage, OSError):
        return None
    return data_uri(pixels, picture.width / picture.height, side)


def data_uri(pixels: np.ndarray, aspect: float, side: int = SIDE) -> str:
    """Return a JPEG with at most `side` pixels on its longer side. pixels: uint8 (H, W, 3); aspect: width over
    height."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    longer = min(side, max(image.size))
    width, height = (longer, longer / aspect) if aspect >= 1 else (longer * aspect, longer)
    image = image.resize((max(round(width), 1), max(round(height), 1)), Image.Resampling.BILINEAR)
    stream = io.BytesIO()
    image.save(stream, format="JPEG", quality=QUALITY, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"
