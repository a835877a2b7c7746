"""HEIC, as iPhones store photographs, is read with pillow-heif."""

import io
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from helpers.made_photographs import photograph
from PIL import Image

from imagenet_ddp.data.decoding import pixel_conversion
from imagenet_ddp.data.decoding.decode import Reading, decode
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.sources.image_files import list_images


def heic(image: Image.Image, orientation: int = 1) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stream = io.BytesIO()
    pillow_heif.from_pillow(image).save(stream, quality=95, exif=exif.tobytes())
    return stream.getvalue()


def test_a_photograph_has_its_pixels_and_is_listed_under_any_name(tmp_path: Path):
    image = photograph(0).convert("L").convert("RGB")  # colours are stored at half the size
    (tmp_path / "cat").mkdir()
    for name in ("IMG_1.HEIC", "renamed.jpg"):
        (tmp_path / "cat" / name).write_bytes(heic(image))
    images = list_images(tmp_path, ["cat"])
    assert len(images) == 2
    for index in range(2):
        pixels = images.read(index).permute(1, 2, 0).numpy()
        assert np.abs(pixels.astype(int) - np.asarray(image)).mean() < 4


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_file_is_turned_once_however_it_says_so(is_turned: bool):
    """The format itself turns a picture, and pillow-heif does it, so data.exif_orientation does not turn it again."""
    found = decode(heic(photograph(0), orientation=6), "a.heic", Reading(exif_orientation=is_turned))
    assert photograph(0).size == (240, 180) and found.shape == (3, 240, 180)  # width, height; height, width


def test_a_damaged_file_is_unreadable():
    data = heic(photograph(0))
    with pytest.raises(UnreadableImage):
        decode(data[: len(data) // 2], "a.heic")


def test_without_the_package_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pixel_conversion, "reads_heic", lambda: False)
    monkeypatch.setattr(pixel_conversion, "heic_formats", lambda _: ())
    with pytest.raises(UnreadableImage, match=r"it is a HEIC file, whatever its name; .*run `.* 'pillow-heif"):
        decode(heic(photograph(0)), "a.jpg")
