"""Photographs, and files that decoders stumble over, made of the photograph that matplotlib ships for examples."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
from matplotlib import cbook
from PIL import Image, ImageOps


def sample_photo() -> Image.Image:
    """Return a photograph of 512 × 600 pixels."""
    with Image.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)) as image:
        return image.convert("RGB")


def write_photos(folder: Path, count: int = 12) -> list[Path]:
    """Write parts of the photograph, of different shapes, colours and brightness, as JPEG files."""
    folder.mkdir(parents=True, exist_ok=True)
    photo, generator, paths = sample_photo(), np.random.default_rng(0), list[Path]()
    for number in range(count):
        width, height = (int(size) for size in generator.integers(180, 500, 2))
        left, top = (int(generator.integers(0, most)) for most in (513 - width, 601 - height))
        part = photo.crop((left, top, left + width, top + height))
        red, green, blue = part.split()
        part = Image.merge("RGB", [(red, green, blue), (blue, red, green), (green, green, red)][number % 3])
        # less contrast, at different levels of grey
        level = Image.new("RGB", part.size, (40 + 20 * number % 200,) * 3)
        part = Image.blend(ImageOps.invert(part) if number % 4 == 3 else part, level, 0.2 + 0.6 * (number % 2))
        paths.append(folder / f"{number:02}.jpg")
        part.save(paths[-1], quality=92)
    return paths


def write_odd_files(folder: Path) -> dict[str, bool]:
    """Write files of unusual formats, damaged files, and files that are no images, except where one of that name
    exists. Return name -> whether Pillow reads it."""
    photo = sample_photo().resize((400, 300))
    small, grey = photo.resize((64, 48)), photo.convert("L")
    base = _saved(photo, "JPEG", quality=90)
    wide = np.asarray(grey.resize((64, 48)), np.uint16) * 257
    paletted, half = small.quantize(16), len(base) // 2
    readable = {
        "grey.jpg": _saved(grey, "JPEG"),
        "cmyk_made.JPEG": _saved(photo.convert("CMYK"), "JPEG"),
        "progressive_made.JPEG": _saved(photo, "JPEG", progressive=True),
        "without_subsampling.JPEG": _saved(photo, "JPEG", subsampling=0, quality=95),
        "restarts.JPEG": _saved(photo, "JPEG", restart_marker_rows=1),
        "trailing_garbage.JPEG": base + b"garbage" * 50,
        "two_jpegs_joined.JPEG": base + base,
        "exif_orientation_6.jpg": _saved(photo, "JPEG", exif=_orientation(6)),
        "one_pixel.jpg": _saved(photo.resize((1, 1)), "JPEG"),
        "one_pixel_grey.jpg": _saved(grey.resize((1, 1)), "JPEG"),
        "one_row_3000x1.jpg": _saved(photo.resize((3000, 1)), "JPEG"),
        "one_column_1x3000.jpg": _saved(photo.resize((1, 3000)), "JPEG"),
        "big_6000x4000.jpg": _saved(photo.resize((6000, 4000)), "JPEG", quality=60),
        "rgba.png": _saved(_with_alpha(small), "PNG"),
        "grey_alpha_LA.png": _saved(_with_alpha(small).convert("LA"), "PNG"),
        "palette_16colour_tRNS.png": _saved(paletted, "PNG", transparency=3),
        "bw_1bit.png": _saved(small.convert("1"), "PNG"),
        "grey_16bit_made.png": _saved(Image.fromarray(wide), "PNG"),
        "grey_16bit_tRNS.png": _png(wide[0, 0] * np.ones((8, 8), np.uint16) % 200, 16),
        "float_32bit.tiff": _saved(grey.resize((64, 48)).convert("F"), "TIFF"),
        "tiff.tif": _saved(small, "TIFF"),
        "bmp.bmp": _saved(small, "BMP"),
        "ppm.ppm": _saved(small, "PPM"),
        "still.webp": _saved(small, "WEBP"),
        "animated.gif": _saved(paletted, "GIF", save_all=True, append_images=[paletted.rotate(90)]),
        "png_named_JPEG.JPEG": _saved(small, "PNG"),
        "bmp_named_JPEG.JPEG": _saved(small, "BMP"),
        "name with spaces (1).JPEG": _saved(small, "JPEG"),
        "näme_ünicode_图.JPEG": _saved(small, "JPEG"),
        "UPPER_CASE_EXT.JPG": _saved(small, "JPEG"),
        "huge_10000x10000_warns.png": _blank_png(10_000),
    }
    size_at = base.index(b"\xff\xc0") + 5  # of the height and width in the frame's header
    gif = _saved(paletted, "GIF")
    refused = {
        "truncated_half.JPEG": base[:half],
        "truncated_99_percent.JPEG": base[: len(base) * 99 // 100],
        "truncated_header_only.JPEG": base[:200],
        "missing_last_2_bytes.JPEG": base[:-2],
        "zero_filled_tail.JPEG": base[: len(base) // 3] + bytes(len(base) - len(base) // 3),
        "broken_data_stream.png": _with_broken_stream(small),
        "claims_65500x65500.jpg": base[:size_at] + struct.pack(">HH", 65500, 65500) + base[size_at + 4 :],
        "huge_20000x20000_bomb.png": _blank_png(20_000),
        "decompression_bomb.gif": gif[:6] + struct.pack("<HH", 65535, 65535) + gif[10:],
        "zero_bytes.JPEG": b"",
        "html_error_page.JPEG": b"<html><body>404 Not Found</body></html>",
        "git_lfs_pointer.JPEG": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {**readable, **refused}.items():
        if not (folder / name).exists():
            (folder / name).write_bytes(content)
    return dict.fromkeys(readable, True) | dict.fromkeys(refused, False)


def _saved(image: Image.Image, kind: str, **how: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def _orientation(number: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


def _with_alpha(image: Image.Image) -> Image.Image:
    found = image.convert("RGBA")
    found.putalpha(Image.linear_gradient("L").resize(image.size))
    return found


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _with_chunks(width: int, height: int, bits: int, *chunks: bytes) -> bytes:
    """Return a grey PNG file."""
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + b"".join(chunks) + _chunk(b"IEND", b"")


def _png(pixels: np.ndarray, bits: int) -> bytes:
    """Return a grey PNG file with a transparent value."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    return _with_chunks(
        pixels.shape[1], pixels.shape[0], bits, _chunk(b"tRNS", b"\0\0"), _chunk(b"IDAT", zlib.compress(rows))
    )


def _blank_png(size: int) -> bytes:
    """Return a black PNG file of one bit per pixel. size: height and width."""
    return _with_chunks(size, size, 1, _chunk(b"IDAT", zlib.compress(bytes((size // 8 + 1) * size), 1)))


def _with_broken_stream(image: Image.Image) -> bytes:
    """Return a PNG file whose compressed data is damaged, though each checksum is right."""
    rows = bytearray(zlib.compress(np.asarray(image.convert("L")).tobytes()))
    rows[len(rows) // 3 : len(rows) // 3 + 40] = bytes(40)
    return _with_chunks(*image.size, 8, _chunk(b"IDAT", bytes(rows)))
