import io
import sys

import numpy as np
import pytest
from PIL import Image

from imagenet_ddp.data import decode, jpeg
from imagenet_ddp.data.jpeg import decoder
from imagenet_ddp.data.pillow import UnreadableImage
from imagenet_ddp.errors import ConfigError


def photo(height: int, width: int, mode: str = "RGB", **how: object) -> bytes:
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([128 + 100 * np.sin(x / 9 + y / (5 + 3 * channel)) for channel in range(3)], axis=2)
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).convert(mode).save(file, "JPEG", **how)
    return file.getvalue()


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8", b"\x89PNG\r\n", b"\xff\xd8\xff\xe0\x00\x10JFIF", b"\xff\xd8" + b"\xff" * 50]
)
def test_what_is_no_jpeg_has_no_header(data: bytes):
    assert jpeg.read_header(data) is None


@pytest.mark.parametrize("progressive", [False, True])
def test_a_file_cut_about_its_headers_end_cannot_be_read(progressive: bool):
    data = photo(40, 40, progressive=progressive)
    whole = jpeg.read_header(data)
    assert whole is not None
    for length in range(whole.data_at - 20, whole.data_at + 5):
        with pytest.raises(UnreadableImage):
            decode.decode(data[:length], "a.jpg")


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_fewer_rows_are_the_same_rows(mode: str, subsampling: int):
    data = photo(203, 120, mode, subsampling=subsampling, quality=92)
    header = jpeg.read_header(data)
    assert header is not None
    decode = decoder("simplejpeg")
    whole, shortened = decode(data, 0, 0), 0
    for bottom in range(1, 204, 23):
        if (shorter := jpeg.until(data, header, bottom)) is not None:
            assert np.array_equal(decode(shorter[0], 0, 0)[:bottom], whole[:bottom])
            shortened += 1
    assert shortened > 5


def _forget() -> None:
    jpeg.choose.cache_clear()
    jpeg.decoder.cache_clear()


def test_the_fastest_that_is_there_is_chosen_and_says_why(monkeypatch: pytest.MonkeyPatch):
    assert jpeg.choose("auto").name == "simplejpeg"
    assert jpeg.choose("auto").reason.startswith("simplejpeg ")
    _forget()
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "simplejpeg", None)
        choice = jpeg.choose("auto")
        assert (choice.name, "simplejpeg cannot be used here" in choice.reason) == ("pillow", True)
        with pytest.raises(ConfigError, match=r"data\.decoder=simplejpeg .* Hint: .*pip install .*'simplejpeg'"):
            jpeg.choose("simplejpeg")
    _forget()
