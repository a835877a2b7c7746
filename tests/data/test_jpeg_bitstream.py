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


@pytest.mark.parametrize(("subsampling", "row_height", "across"), [(0, 8, 8), (1, 8, 16), (2, 16, 16)])
def test_a_header_is_read(subsampling: int, row_height: int, across: int):
    header = jpeg_bitstream.read_header(photo(75, 101, subsampling=subsampling, restart_marker_rows=2))
    assert header is not None
    assert (header.height, header.width, header.num_components, header.precision) == (75, 101, 3, 8)
    assert (header.row_height, header.blocks_per_row) == (row_height, -(-101 // across))
    assert header.restart_interval == 2 * header.blocks_per_row
    assert header.is_one_pass


def test_grey_has_single_blocks_and_progressive_several_passes():
    grey = jpeg_bitstream.read_header(photo(75, 101, "L", restart_marker_rows=1))
    assert grey is not None
    assert (grey.num_components, grey.row_height, grey.blocks_per_row, grey.restart_interval) == (1, 8, 13, 13)
    progressive = jpeg_bitstream.read_header(photo(75, 101, progressive=True))
    assert progressive is not None
    assert not progressive.is_one_pass
    assert jpeg_bitstream.read_scan(photo(75, 101, progressive=True), progressive) is None


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
    assert time.monotonic() - begin < 2  # 46 s were seen


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
    for rows in (1, 3):
        data = photo(203, 120, mode, subsampling=subsampling, restart_marker_rows=rows, quality=92)
        header = jpeg_bitstream.read_header(data)
        assert header is not None
        scan = jpeg_bitstream.read_scan(data, header)
        assert scan is not None
        decode = decoder("simplejpeg").rgb
        whole = decode(data)
        spared = 0
        for top in range(0, 203, 9):
            for bottom in range(top + 1, 204, 23):
                if (banded := jpeg_bitstream.band(data, header, scan, top, bottom)) is not None:
                    cut, first, height = banded
                    found = decode(cut)
                    assert found.shape[0] == height <= 203
                    assert np.array_equal(found[top - first : bottom - first], whole[top:bottom])
                    spared += 1
                if (shorter := jpeg_bitstream.until(data, header, bottom)) is not None:
                    assert np.array_equal(decode(shorter[0])[:bottom], whole[:bottom])
        assert spared > 50


def test_other_restart_markers_are_left_alone():
    """Not between rows of blocks, or fewer than the header promises."""
    for how, is_spared in (("restart_marker_blocks", False), ("restart_marker_rows", True)):
        data = photo(128, 128, "RGB", **{how: 1})
        header = jpeg_bitstream.read_header(data)
        assert header is not None
        scan = jpeg_bitstream.read_scan(data, header)
        assert scan is not None
        assert (jpeg_bitstream.band(data, header, scan, 0, 20) is not None) == is_spared
        assert jpeg_bitstream.band(data, header, jpeg_bitstream.Scan(scan.end, scan.restarts[:-1]), 0, 20) is None


def test_image_data_in_disorder_is_for_a_whole_decode():
    data = photo(128, 128, restart_marker_rows=1)
    header = jpeg_bitstream.read_header(data)
    assert header is not None
    scan = jpeg_bitstream.read_scan(data, header)
    assert scan is not None
    second, third = scan.restarts[1:3]
    disorders = [
        data[:second] + data[third:],  # a marker is missing
        data[:second] + b"\xff\xd5" + data[second + 2 :],  # is another one
        data[:second] + b"\xff\xd9" + data[second:],  # the image ends in between
        data[:second] + b"\xff\xfe\x00\x04ab" + data[second:],  # a comment in between
        data[:second] + data,  # cut off, and another image behind
        data[: scan.end],  # cut off
    ]
    assert [jpeg_bitstream.read_scan(each, header) for each in disorders] == [None] * 6
    fill = data[:second] + b"\xff\xff" + data[second:]  # allowed before a marker
    assert jpeg_bitstream.read_scan(fill, header) is not None
    assert jpeg_bitstream.read_scan(data + data, header) == scan  # what follows the end is not looked at
