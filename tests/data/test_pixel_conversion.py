"""The rule for each pixel type, on a ramp from black to white."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from imagenet_ddp.data.decode import decode
from imagenet_ddp.data.unreadable_images import UnreadableImage

RAMP = np.tile(np.linspace(0, 1, 64), (8, 1))


def saved(image: Image.Image, kind: str = "TIFF") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def ramp(scale: float, dtype: str) -> bytes:
    return saved(Image.fromarray((RAMP * scale).astype(dtype)))


def rgb_16_bit_png(largest: int) -> bytes:
    import zlib

    values = np.repeat((RAMP * largest).astype(">u2")[:, :, None], 3, axis=2)
    rows = b"".join(b"\0" + row.tobytes() for row in values)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 64, 8, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("data", [
    ramp(1, "f4"), ramp(255, "f4"), ramp(4095, "f4"), ramp(65535, "f4"), ramp(255, "i4"), ramp(4095, "i4"),
    ramp(65535, "i4"), ramp(255, "u2"), ramp(4095, "u2"), ramp(65535, "u2"), ramp(255, "u1"), rgb_16_bit_png(65535),
    saved(Image.fromarray((RAMP * 4095).astype("u2")), "PNG"), saved(Image.fromarray((RAMP * 4095).astype(">u2"))),
    saved(Image.fromarray((RAMP * 65535).astype("i4")), "PPM"),
])  # fmt: skip
def test_a_ramp_stays_a_ramp(data: bytes):
    found = decode(data, "ramp").permute(1, 2, 0).numpy()
    assert found.dtype == np.uint8
    assert np.abs(found - 255 * RAMP[:, :, None]).max() <= 1


@pytest.mark.parametrize("data", [
    saved(Image.fromarray((RAMP - 0.5).astype("f4"))), ramp(1.2, "f4"), ramp(70000, "f4"), ramp(1e6, "i4"),
    saved(Image.fromarray((RAMP * 100 - 50).astype("i4"))), saved(Image.fromarray(np.full((4, 4), np.nan, "f4"))),
    saved(Image.fromarray(np.full((4, 4), np.inf, "f4"))), ramp(1e-3, "f4"), rgb_16_bit_png(4095),
])  # fmt: skip
def test_values_without_a_known_white_are_unreadable(data: bytes):
    with pytest.raises(UnreadableImage, match=r"; store .*(0 to 255|8 bits)"):
        decode(data, "ramp")


def test_black_is_black_in_every_type():
    for dtype in ("u1", "u2", "i4", "f4"):
        assert not decode(ramp(0, dtype), "black").any()


@pytest.mark.parametrize("kind", ["TIFF", "GIF"])
def test_the_first_frame_is_read(kind: str):
    file = io.BytesIO()
    frames = [Image.new("RGB", (16, 16), (10 * number, 200, 30)) for number in range(3)]
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    assert abs(decode(file.getvalue(), kind)[:, 0, 0].float().numpy() - [0, 200, 30]).max() <= 2
