import io
import json
import random
import re
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.forked_commands import start_code
from helpers.sample_images import write_odd_files
from PIL import Image, ImageOps

from imagenet_ddp.data.decoding import decode as decoding
from imagenet_ddp.data.decoding import jpeg
from imagenet_ddp.data.decoding.decode import JpegPicture, Reading, decode, open_picture
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.errors import ConfigError

BOMBS = ("huge_20000x20000_bomb.png", "claims_65500x65500.jpg", "decompression_bomb.gif")
BIG = ("huge_10000x10000_warns.png", "big_6000x4000.jpg")  # too slow to compare
WHITE_UNKNOWN = ("grey_16bit_tRNS.png", "float_32bit.tiff")  # of more than 8 bits, with no value above 255

# In a process of its own: one of the files ends a process that decodes it carelessly, others ask for all memory.
DECODE_ALL = """
    import json, resource
    from pathlib import Path
    from imagenet_ddp.data.decoding.decode import decode
    from imagenet_ddp.data.decoding.errors import UnreadableImage

    decode((Path(args[0]) / "grey.jpg").read_bytes(), "grey.jpg")  # what decoders load at first use
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 3 * 2**30,) * 2)
    for name in args[1]:
        path, reason = str(Path(args[0]) / name), ""
        try:
            decode(Path(path).read_bytes(), path)
        except UnreadableImage as error:
            reason = error.reason
        print(json.dumps([name, reason]), flush=True)
"""


@pytest.fixture(scope="module")
def odd_files(odd_images: Path | None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bool]]:
    """Return (folder, name -> whether Pillow reads it): generated files, and the collected ones if they are here."""
    folder, found = tmp_path_factory.mktemp("odd"), {}
    if odd_images is not None:
        rows = re.findall(r"^\| `(.+?)` \|(.*)$", (odd_images / "MANIFEST.md").read_text("utf-8"), re.MULTILINE)
        found = {name: rest.split("|")[3].strip().startswith("ok") for name, rest in rows}
        assert (len(found), sum(found.values())) == (101, 78)
        for name in found:
            (folder / name).symlink_to(odd_images / name)
    return folder, write_odd_files(folder) | found


@pytest.fixture(scope="module")
def odd(odd_files: tuple[Path, dict[str, bool]]) -> Path:
    return odd_files[0]


@pytest.fixture(scope="module")
def read_by_pillow(odd_files: tuple[Path, dict[str, bool]]) -> dict[str, bool]:
    return odd_files[1]


@pytest.fixture(scope="module")
def reasons(odd: Path, read_by_pillow: dict[str, bool]) -> dict[str, str]:
    """Why each file cannot be read, "" if it can."""
    names = [*BOMBS, *(name for name in read_by_pillow if name not in BOMBS)]
    process = start_code(textwrap.dedent(DECODE_ALL), str(odd), names)
    code = process.wait(500)
    found = dict(map(json.loads, process.out.splitlines()))
    assert code == 0, f"died on {names[len(found)]}: {process.err}"
    return found


def by_pillow(path: Path) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(path) as image:
            return np.array(image.convert("RGB"))


def test_what_pillow_reads_is_read_and_the_rest_is_refused(reasons: dict[str, str], read_by_pillow: dict[str, bool]):
    readable = read_by_pillow | dict.fromkeys(WHITE_UNKNOWN, False)
    assert {name: not reason for name, reason in reasons.items()} == readable
    assert all("set data.white_level" in reasons[name] for name in WHITE_UNKNOWN)
    assert {reasons[name] for name in BOMBS} == {"it has more than 178,956,970 pixels"}
    words_of_pillow = [
        each for each in reasons.values() if re.search("truncated|data stream|not processed", each, re.I)
    ]
    assert words_of_pillow == [] and sum("its end is missing" in each for each in reasons.values()) >= 4


@pytest.mark.parametrize("decoder", decoding.NAMES)
def test_pixels_are_pillows(odd: Path, read_by_pillow: dict[str, bool], decoder: str):
    """Whoever decodes; and nothing turns an image by its EXIF orientation: a square one would differ, others have
    another shape."""
    for name, readable in read_by_pillow.items():
        reading = Reading(decoder, white_level=255 if name in WHITE_UNKNOWN else None)
        if not readable or name in BIG or name.startswith("grey_16bit"):
            continue
        image = decode((odd / name).read_bytes(), name, reading).permute(1, 2, 0).numpy()
        expected = by_pillow(odd / name)
        assert image.shape == expected.shape, name
        assert np.abs(image.astype(int) - expected).mean() < 1, name


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_the_cameras_orientation_is_applied_where_that_is_asked_for(kind: str):
    upright = np.zeros((40, 64, 3), dtype=np.uint8)
    upright[:20, :32], upright[20:, :32], upright[:20, 32:] = (250, 0, 0), (0, 250, 0), (0, 0, 250)
    for orientation in range(1, 10):
        exif = Image.Exif()
        exif[0x0112] = orientation
        file = io.BytesIO()
        Image.fromarray(upright).save(file, kind, exif=exif)
        with Image.open(file) as image:
            expected = np.array(ImageOps.exif_transpose(image).convert("RGB"))
        found = decode(file.getvalue(), "x", Reading(exif_orientation=True)).permute(1, 2, 0).numpy()
        assert np.array_equal(found, expected), orientation
        picture = open_picture(file.getvalue(), "x", Reading(exif_orientation=True))
        # most photographs say that they are upright, and must not take the slow way
        assert isinstance(picture, JpegPicture) == (kind == "JPEG" and orientation in (1, 9))
        if kind != "TIFF":  # which Pillow turns in any case
            assert decode(file.getvalue(), "x").shape == (3, 40, 64)


def test_a_region_is_that_part_of_the_whole(odd: Path, photographs: list[Path]):
    """Whatever is spared on the way: the rows below, or nothing (progressive, PNG)."""
    files = {path.name: path.read_bytes() for path in photographs[:6]}
    photo = Image.open(io.BytesIO(next(iter(files.values())))).convert("RGB")
    for subsampling in (0, 1, 2):
        file = io.BytesIO()
        photo.save(file, "JPEG", quality=90, restart_marker_rows=1, subsampling=subsampling)
        files[f"restart-{subsampling}.jpg"] = file.getvalue()
    for name in ("grey.jpg", "without_subsampling.JPEG", "progressive_made.JPEG", "rgba.png", "two_jpegs_joined.JPEG",
                 "trailing_garbage.JPEG", "real_sampling_1x2.JPEG", "real_no_EOI_marker_b.JPEG"):  # fmt: skip
        if (odd / name).exists():
            files[name] = (odd / name).read_bytes()
    generator = random.Random(0)
    for name, data in files.items():
        for decoder in decoding.NAMES:
            picture = open_picture(data, name, Reading(decoder))
            whole = picture.region(0, 0, picture.height, picture.width)
            for _ in range(4):
                top, left = generator.randrange(picture.height), generator.randrange(picture.width)
                height = generator.randint(1, picture.height - top)
                width = generator.randint(1, picture.width - left)
                part = picture.region(top, left, height, width)
                assert np.array_equal(part, whole[top : top + height, left : left + width]), (name, decoder)


@pytest.mark.parametrize(
    ("how", "first"),
    [({"restart_marker_rows": 1}, 144), ({"restart_marker_rows": 2}, 0), ({"restart_marker_blocks": 5}, 0), ({}, 0)],
)
def test_only_the_rows_of_a_crop_are_decoded(how: dict[str, Any], first: int):
    """Those above need a restart marker after each row of blocks, of 16 pixels; the crop, one row beside it."""
    data = photo(320, 200, subsampling=2, **how)
    header = jpeg.read_header(data)
    assert header is not None
    part = jpeg.rows_between(data, header, 159, 161)
    assert (part.top, part.height) == (first, 176 - first)
    assert decoding.decoder("simplejpeg")(part.data, 0, 0).shape == (part.height, 200, 3)


@pytest.mark.parametrize("decoder", decoding.NAMES)
def test_a_large_crop_may_come_smaller_and_looks_the_same(odd: Path, decoder: str):
    data = (odd / "big_6000x4000.jpg").read_bytes()
    picture = open_picture(data, "big", Reading(decoder))
    whole = picture.region(0, 0, 4000, 6000)
    for box, size in (((0, 0, 4000, 6000), 224), ((700, 900, 1500, 1300), 224), ((700, 900, 500, 1300), 224)):
        found = picture.region(*box, size=size)
        assert min(found.shape[:2]) >= size
        assert found.shape[0] * found.shape[1] * 4 <= box[2] * box[3]
        top, left, height, width = box
        one, other = (
            np.asarray(Image.fromarray(np.ascontiguousarray(each)).resize((size, size), Image.Resampling.BOX))
            for each in (found, whole[top : top + height, left : left + width])
        )
        assert np.abs(one.astype(int) - other).mean() < 4


@pytest.mark.parametrize("decoder", decoding.NAMES)
@pytest.mark.parametrize("factor", [2, 4, 8])
def test_a_crop_that_comes_smaller_is_not_shifted(decoder: str, factor: int):
    """The sides are no multiples of 8, so that the last decoded pixel covers only a part of a block."""
    height, width, size = 601, 803, 32
    data = photo(height, width, quality=95, subsampling=0, restart_marker_rows=1)  # the rows above can be left out
    picture = open_picture(data, "x", Reading(decoder))
    whole = picture.region(0, 0, height, width).astype(float)
    length = factor * size
    for top, left in ((0, 0), (height - 9 - length, width - 11 - length)):
        top, left = top // factor * factor, left // factor * factor
        found = picture.region(top, left, length, length, size=size).astype(float)
        blocks = whole[top : top + length, left : left + length].reshape(size, factor, size, factor, 3)
        assert found.shape == (size, size, 3)
        assert np.abs(found - blocks.mean(axis=(1, 3))).mean() < 1, (top, left)


def test_a_broken_jpeg_is_refused_whichever_part_is_asked_for(odd: Path):
    """Also where only its upper rows are wanted, which are there."""
    for name in ("truncated_half.JPEG", "zero_filled_tail.JPEG", "missing_last_2_bytes.JPEG"):
        with pytest.raises(UnreadableImage, match=name):
            open_picture((odd / name).read_bytes(), name).region(0, 0, 16, 16)


# ---- headers of JPEGs, and the choice of the decoder


def photo(height: int, width: int, mode: str = "RGB", **how: object) -> bytes:
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([128 + 100 * np.sin(x / 9 + y / (5 + 3 * channel)) for channel in range(3)], axis=2)
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).convert(mode).save(file, "JPEG", **how)
    return file.getvalue()


@pytest.mark.parametrize("progressive", [False, True])
def test_a_file_cut_about_its_headers_end_cannot_be_read(progressive: bool):
    data = photo(40, 40, progressive=progressive)
    whole = jpeg.read_header(data)
    assert whole is not None
    for length in range(whole.data_at - 20, whole.data_at + 5):
        with pytest.raises(UnreadableImage):
            decode(data[:length], "a.jpg")


def _forget() -> None:
    decoding.choose_decoder.cache_clear()
    decoding.decoder.cache_clear()


def test_the_fastest_that_is_there_is_chosen_and_says_why(monkeypatch: pytest.MonkeyPatch):
    assert decoding.choose_decoder("auto").name == "simplejpeg"
    assert decoding.choose_decoder("auto").reason.startswith("simplejpeg ")
    _forget()
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "simplejpeg", None)
        choice = decoding.choose_decoder("auto")
        assert (choice.name, "simplejpeg cannot be used here" in choice.reason) == ("pillow", True)
        with pytest.raises(ConfigError, match=r"data\.decoder=simplejpeg .* Hint: .*pip install .*'simplejpeg'"):
            decoding.choose_decoder("simplejpeg")
    _forget()
