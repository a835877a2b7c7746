"""Decode one image to find out whether it can be read, and hash its content."""

import hashlib
from typing import Any, NamedTuple

from imagenet_ddp.data.decode import JpegPicture, UnreadableImage, decode_whole, open_picture
from imagenet_ddp.data.pillow import assumed, is_rotated
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.files import FileImages

OUT_OF_MEMORY = "MemoryError"
JPEG, HEADER_BYTES = b"\xff\xd8", 65536  # signature; where EXIF data are, at the beginning of the file
IGNORED = "which is ignored (data.exif_orientation=true rotates them)"


class Probe(NamedTuple):
    """The result for one image. reason: why it cannot be decoded; None if it can. content_hash: 64-bit BLAKE2b of the
    file's bytes, or of the pixels if there is no file; 0 if they could not be read. assumed: what was assumed to decode
    it (pillow.assumptions)."""

    reason: str | None
    content_hash: int = 0
    assumed: tuple[str, ...] = ()


def probe_image(images: Images, index: int) -> Probe:
    """Decode and hash one image. Never raises for a bad image."""
    content = 0
    try:
        if isinstance(images, FileImages):
            data = images.encoded(index)
            content = _content_hash(data)
            picture = open_picture(data, images.path(index), images.reading)
            decode_whole(picture)
            notes = [] if isinstance(picture, JpegPicture) else assumed(data)
            if data.startswith(JPEG) and is_rotated(data[:HEADER_BYTES]):
                is_read = images.reading.exif_orientation
                notes.append(f"have an EXIF orientation, {'as which they are rotated' if is_read else IGNORED}")
            return Probe(None, content, tuple(notes))
        else:
            images.verify(index)
            pixels, data = images.read(index), images.encoded(index)
            content = _content_hash(pixels.contiguous().numpy() if data is None else data)
        return Probe(None, content)
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
