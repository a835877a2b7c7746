import io
import time

import numpy as np
import pytest
from PIL import Image

from imagenet_ddp.data import decode, jpeg_bitstream
from imagenet_ddp.data.jpeg_backends import decoder
from imagenet_ddp.data.pillow import UnreadableImage


def photo(height: int, width: int, mode: str = "RGB", **how: object) -> bytes:
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([128 + 100 * np.sin(x / 9 + y / (5 + 3 * channel)) for channel in range(3)], axis=2)
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).convert(mode).save(file, "JPEG", **how)
    return file.getvalue()


@pytest.mark.parametrize(("subsampling", "row_height"), [(0, 8), (1, 8), (2, 16)])
def test_a_header_is_read(subsampling: int, row_height: int):
    header = jpeg_bitstream.read_header(photo(75, 101, subsampling=subsampling))
    assert header is not None
    assert (header.height, header.width, header.num_components, header.precision) == (75, 101, 3, 8)
    assert header.row_height == row_height and header.is_one_pass


def test_grey_has_single_blocks_and_progressive_several_passes():
    grey = jpeg_bitstream.read_header(photo(75, 101, "L"))
    progressive = jpeg_bitstream.read_header(photo(75, 101, progressive=True))
    assert grey is not None and (grey.num_components, grey.row_height) == (1, 8)
    assert progressive is not None and not progressive.is_one_pass


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8", b"\x89PNG\r\n", b"\xff\xd8\xff\xe0\x00\x10JFIF", b"\xff\xd8" + b"\xff" * 50]
)
def test_what_is_no_jpeg_has_no_header(data: bytes):
    assert jpeg_bitstream.read_header(data) is None


def test_fill_bytes_without_end_are_left():
    data = photo(40, 40)
    assert jpeg_bitstream.read_header(data[:2] + b"\xff" * 100 + data[2:]) is not None
    begin = time.monotonic()
    assert jpeg_bitstream.read_header(data[:2] + b"\xff" * 40_000_000) is None
    assert time.monotonic() - begin < 20  # 46 s were seen


def test_a_header_cut_anywhere_is_none_or_whole():
    data = photo(40, 40)
    whole = jpeg_bitstream.read_header(data)
    assert whole is not None
    assert all(jpeg_bitstream.read_header(data[:length]) is None for length in range(whole.data_at - 12))


@pytest.mark.parametrize("progressive", [False, True])
def test_a_file_cut_about_its_headers_end_cannot_be_read(progressive: bool):
    data = photo(40, 40, progressive=progressive)
    whole = jpeg_bitstream.read_header(data)
    assert whole is not None
    for length in range(whole.data_at - 20, whole.data_at + 5):
        with pytest.raises(UnreadableImage):
            decode.decode(data[:length], "a.jpg")


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_fewer_rows_are_the_same_rows(mode: str, subsampling: int):
    data = photo(203, 120, mode, subsampling=subsampling, quality=92)
    header = jpeg_bitstream.read_header(data)
    assert header is not None
    decode = decoder("simplejpeg").rgb
    whole, shortened = decode(data), 0
    for bottom in range(1, 204, 23):
        if (shorter := jpeg_bitstream.until(data, header, bottom)) is not None:
            assert np.array_equal(decode(shorter[0])[:bottom], whole[:bottom])
            shortened += 1
    assert shortened > 5
