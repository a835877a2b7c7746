"""Pixels of two pictures: what is made of one photograph agrees, whatever else looks alike does not."""

import io

import numpy as np
import pytest
from helpers.made_photographs import photograph
from PIL import Image, ImageDraw, ImageFilter

from imagenet_ddp.curation.pixel_match import LEAST_AGREEMENT, SIDE, compare


def cut_out(image: Image.Image, background: int = 255) -> Image.Image:
    """Return the middle of a picture as a disc on a plain background."""
    mask = Image.new("L", image.size)
    ImageDraw.Draw(mask).ellipse((50, 20, 190, 160), fill=255)
    return Image.composite(image, Image.new("RGB", image.size, (background,) * 3), mask)


def thumbnails(*images: Image.Image) -> np.ndarray:
    return np.stack([np.asarray(each.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)) for each in images])


def crop(image: Image.Image, left: float, top: float, right: float, bottom: float) -> Image.Image:
    width, height = image.size
    return image.crop((round(left * width), round(top * height), round(right * width), round(bottom * height)))


def encoded(image: Image.Image, quality: int) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(stream).convert("RGB")


def with_text(image: Image.Image) -> Image.Image:
    image = image.copy()
    ImageDraw.Draw(image).text((20, 80), "copyright somebody", fill=(255, 255, 255))
    return image


CHANGES = {
    "re-encoded": lambda image: encoded(image, 30),
    "half the size": lambda image: image.resize((120, 90), Image.Resampling.BICUBIC),
    "squashed": lambda image: image.resize((240, 120)),
    "a tenth off": lambda image: crop(image, 0.07, 0.03, 0.97, 0.93),
    "a quarter off": lambda image: crop(image, 0.125, 0.125, 0.875, 0.875),
    "a corner": lambda image: crop(image, 0, 0.25, 0.75, 1),
    "narrower": lambda image: crop(image, 0.2, 0, 1, 1),
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "mirrored, cropped": lambda image: crop(image, 0.1, 0.1, 1, 1).transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "brighter": lambda image: image.point(lambda value: min(255, int(value * 1.3))),
    "darker": lambda image: image.point(lambda value: value // 2),
    "grey": lambda image: image.convert("L").convert("RGB"),
    "text": with_text,
    "all of it": lambda image: encoded(with_text(crop(image, 0, 0.1, 0.9, 1)).resize((160, 120)).convert("L"), 50),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["photographs", "cut-outs"])
def test_copies_agree_and_other_pictures_do_not(kind: str):
    """In either order. All cut-outs have the same outline on the same background, which says nothing about copies."""
    originals = [photograph(seed) if kind == "photographs" else cut_out(photograph(seed)) for seed in range(3)]
    copies = [change(image) for change in CHANGES.values() for image in originals]
    pixels = thumbnails(*originals, *copies)
    copy = np.arange(len(copies)) + 3
    original = np.arange(len(copies)) % 3
    for first, second in ((original, copy), (copy, original)):
        match = compare(pixels, first, second)
        least = match.agreement.reshape(-1, 3).min(1).tolist()
        assert [pair for pair in zip(CHANGES, least, strict=True) if pair[1] < LEAST_AGREEMENT] == []
        mirrored = match.is_mirrored.reshape(-1, 3).min(1).tolist()
        assert [name for name, is_so in zip(CHANGES, mirrored, strict=True) if is_so] == [
            "mirrored",
            "mirrored, cropped",
        ]
    others = compare(pixels, original, copy - original + (original + 1) % 3)
    assert others.agreement.max() < LEAST_AGREEMENT


def test_what_shows_nothing_agrees_with_nothing():
    """A plain picture, and one with the noise of a sensor alone, even with itself; a soft gradient is too little."""
    noise = np.random.default_rng(0).normal(200, 2, (180, 240, 3)).clip(0, 255).astype(np.uint8)
    ramp = np.broadcast_to(np.linspace(60, 200, 240)[None, :, None], (180, 240, 3)).astype(np.uint8)
    plain = [Image.new("RGB", (240, 180), "white"), Image.fromarray(noise).filter(ImageFilter.GaussianBlur(1))]
    pixels = thumbnails(*plain, *plain, Image.fromarray(ramp), photograph(0))
    match = compare(pixels, np.array([0, 0, 1, 1, 0, 4]), np.array([2, 1, 3, 5, 5, 5]))
    assert match.agreement.max() < LEAST_AGREEMENT and (match.agreement[:4] == 0).all()


def test_no_pairs_and_one_pair():
    none = compare(thumbnails(photograph(0)), np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert none.agreement.shape == (0,)
    assert compare(thumbnails(photograph(0)), np.array([0]), np.array([0])).agreement == 1
