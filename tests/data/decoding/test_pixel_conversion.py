"""The rule for each pixel type, on a ramp from black to white."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from imagenet_ddp.data.decoding.decode import Reading, decode
from imagenet_ddp.data.decoding.errors import UnreadableImage

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


@pytest.mark.parametrize(("data", "white_level"), [
    (ramp(1, "f4"), None), (ramp(255, "f4"), 255), (ramp(4095, "f4"), 4095), (ramp(65535, "f4"), None),
    (ramp(255, "i4"), 255), (ramp(4095, "i4"), 4095), (ramp(65535, "i4"), None), (ramp(255, "u2"), 255),
    (ramp(1023, "u2"), 1023), (ramp(65535, "u2"), None), (ramp(255, "u1"), None), (rgb_16_bit_png(65535), None),
    (ramp(255, "u1"), 4095), (ramp(65535, "f4"), 65535), (ramp(0.001, "f4"), 0.001),
    (saved(Image.fromarray((RAMP * 4095).astype("u2")), "PNG"), 4095),
    (saved(Image.fromarray((RAMP * 4095).astype(">u2"))), 4095),
    (saved(Image.fromarray((RAMP * 65535).astype("i4")), "PPM"), None),
    (b"P5 64 8 4095\n" + (RAMP * 4095).astype(">u2").tobytes(), None),  # which states its white
    (b"P5 64 8 4095\n" + (RAMP * 4095).astype(">u2").tobytes(), 255),
])  # fmt: skip
def test_a_ramp_stays_a_ramp(data: bytes, white_level: float | None):
    found = decode(data, "ramp", Reading(white_level=white_level)).permute(1, 2, 0).numpy()
    assert found.dtype == np.uint8
    assert np.abs(found - 255 * RAMP[:, :, None]).max() <= 1


@pytest.mark.parametrize("kind", ["TIFF", "PNG"])
def test_all_images_have_one_range(kind: str):
    """Of whichever two images, that with twice the value is twice as bright."""
    for white_level in (4095, 10_000, 65535):
        reading = Reading(white_level=white_level)
        for value in (100, 255, 256, 2047, 4094):
            image = Image.fromarray(np.full((4, 4), value, "u2"))
            assert decode(saved(image, kind), "x", reading)[0, 0, 0] == round(255 * value / white_level)


@pytest.mark.parametrize(("data", "white_level"), [
    (saved(Image.fromarray((RAMP - 0.5).astype("f4"))), None), (ramp(1.2, "f4"), None), (ramp(70000, "f4"), None),
    (ramp(1e6, "i4"), None), (saved(Image.fromarray((RAMP * 100 - 50).astype("i4"))), None),
    (saved(Image.fromarray(np.full((4, 4), np.nan, "f4"))), 1), (ramp(4095, "u2"), None), (ramp(255, "i4"), None),
    (saved(Image.fromarray(np.full((4, 4), np.inf, "f4"))), None), (ramp(1e-3, "f4"), None), (ramp(4096, "u2"), 4095),
    (rgb_16_bit_png(4095), None),
])  # fmt: skip
def test_values_without_a_known_white_are_unreadable(data: bytes, white_level: float | None):
    with pytest.raises(UnreadableImage, match=r"; (set data.white_level|store 8 bits)"):
        decode(data, "ramp", Reading(white_level=white_level))


def test_black_is_black_in_every_type():
    for dtype in ("u1", "u2", "i4", "f4"):
        assert not decode(ramp(0, dtype), "black").any()


@pytest.mark.parametrize("kind", ["TIFF", "GIF"])
def test_the_first_frame_is_read(kind: str):
    file = io.BytesIO()
    frames = [Image.new("RGB", (16, 16), (10 * number, 200, 30)) for number in range(3)]
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    assert abs(decode(file.getvalue(), kind)[:, 0, 0].float().numpy() - [0, 200, 30]).max() <= 2
