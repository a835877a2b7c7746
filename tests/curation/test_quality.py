"""The measures of quality: each fault is found at the threshold that its sentence states, and no other."""

from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageFilter

from imagenet_ddp.curation.quality import ROW, badness, measure

GOOD = Image.fromarray(np.random.default_rng(0).integers(0, 256, (15, 20, 3), np.uint8)).resize(
    (640, 480), Image.Resampling.NEAREST
)


def issues_of(image: Image.Image) -> set[str]:
    row = np.array([tuple(measure(np.asarray(image)))], ROW)
    return {name for name, values in badness(row).items() if values[0] > 1}


def scaled(factor: float, offset: float = 0) -> Image.Image:
    return Image.fromarray(np.clip(np.asarray(GOOD) * factor + offset, 0, 255).astype(np.uint8))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: GOOD, set()),
        (lambda: GOOD.resize((4000, 3000), Image.Resampling.NEAREST), set()),
        (lambda: GOOD.filter(ImageFilter.GaussianBlur(1)), set()),
        (lambda: GOOD.filter(ImageFilter.GaussianBlur(6)), {"blurry"}),
        (
            lambda: GOOD.resize((2560, 1920)).filter(ImageFilter.GaussianBlur(24)),
            {"blurry"},
        ),  # another size
        (lambda: GOOD.resize((80, 60), Image.Resampling.NEAREST), {"too small"}),
        (lambda: scaled(0.3), {"too dark"}),
        (lambda: scaled(0.05, 245), {"too bright", "low in contrast"}),
        (lambda: scaled(0.15, 110), {"low in contrast"}),
        (lambda: GOOD.quantize(6).convert("RGB"), set()),  # a sharp picture of few colours
        (lambda: Image.new("RGB", (300, 300), (220, 190, 180)), {"low in contrast", "nearly of one colour"}),
        (lambda: GOOD.crop((0, 0, 640, 200)), {"long and narrow"}),
        (lambda: GOOD.convert("L").convert("RGB"), {"without colours"}),
    ],
)
def test_issues(make: Callable[[], Image.Image], expected: set[str]):
    assert issues_of(make()) == expected


def test_an_image_that_was_not_read_has_no_issue():
    assert {float(values[0]) for values in badness(np.zeros(1, ROW)).values()} == {0.0}


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (9000, 2), (33, 33)])
def test_odd_sizes_are_measured(size: tuple[int, int]):
    assert measure(np.zeros((*size, 3), np.uint8))[:2] == size[::-1]
