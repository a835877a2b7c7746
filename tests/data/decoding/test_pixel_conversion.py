"""The rule for each pixel type, on a ramp from black to white."""

import io
import re
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


def tiff(values: np.ndarray, channels: int = 1, kind: int = 1, planes: int = 1, number: int = 1) -> bytes:
    """Return a TIFF that is not compressed. values: all of its numbers, in the order of the file. kind: 0 if 0 is
    white, 1 grey, 2 RGB. planes: 2 for one per channel. number: 1 for integers, 3 for floating point."""
    data, bits = values.tobytes(), 8 * values.itemsize
    entries = [(256, 64), (257, 8), (258, bits), (259, 1), (262, kind), (273, 8), (277, channels), (278, 8),
               (279, len(data)), (284, planes), (339, number)]  # fmt: skip
    num_strips = channels if planes == 2 else 1
    more, at, head = b"", 8 + len(data) + 2 + 12 * len(entries) + 4, b""
    for tag, value in entries:
        wide = tag in (273, 279)
        each = {258: [bits] * channels, 339: [number] * channels,
                273: [8 + part * len(data) // num_strips for part in range(num_strips)],
                279: [len(data) // num_strips] * num_strips}.get(tag, [value])  # fmt: skip
        packed = struct.pack(f"<{len(each)}{'I' if wide else 'H'}", *each)
        content = packed.ljust(4, b"\0") if len(packed) <= 4 else struct.pack("<I", at + len(more))
        more += packed if len(packed) > 4 else b""
        head += struct.pack("<HHI", tag, 4 if wide else 3, len(each)) + content
    return (
        struct.pack("<2sHI", b"II", 42, 8 + len(data)) + data + struct.pack("<H", len(entries)) + head + bytes(4) + more
    )


@pytest.mark.parametrize(("data", "words"), [
    (tiff(np.stack([RAMP * 65535] * 3).astype("<u2"), 3, 2, planes=2), "stored one after the other"),
    (tiff(np.stack([RAMP * 255] * 5, 2).astype("u1"), 5), "a TIFF that is damaged or of a kind that cannot be read"),
    (tiff(RAMP.astype("<f8"), number=3), "a TIFF that is damaged or of a kind that cannot be read"),
])  # fmt: skip
def test_a_tiff_whose_pixels_would_be_wrong_is_unreadable(data: bytes, words: str):
    with pytest.raises(UnreadableImage, match=words):
        decode(data, "x.tif")


@pytest.mark.parametrize("upright", [False, True])
def test_a_tiff_has_its_own_pixels(upright: bool):
    """Planes of 8 bits, channels side by side in 16 bits, and grey whose 0 is white."""
    for data, wanted in (
        (tiff(np.stack([RAMP * 255] * 3).astype("u1"), 3, 2, planes=2), RAMP),
        (tiff(np.stack([RAMP * 65535] * 3, 2).astype("<u2"), 3, 2), RAMP),
        (tiff((RAMP * 255).astype("u1"), kind=0), 1 - RAMP),
        (tiff((RAMP * 65535).astype("<u2"), kind=0), 1 - RAMP),
    ):
        found = decode(data, "x.tif", Reading(exif_orientation=upright)).permute(1, 2, 0).numpy()
        assert np.abs(found - 255 * wanted[:, :, None]).max() <= 1


def test_each_white_that_a_message_names_can_be_set():
    for data in (ramp(255, "u2"), ramp(3000, "u2"), ramp(4095, "f4"), ramp(0.0039, "f4")):
        with pytest.raises(UnreadableImage) as error:
            decode(data, "ramp")
        levels = re.findall(r"[\d.]+", str(error.value).partition("such as ")[2])
        assert levels
        assert all(decode(data, "ramp", Reading(white_level=float(level))) is not None for level in levels)


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
