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
        (lambda: GOOD.resize((80, 60), Image.Resampling.NEAREST), {"small"}),
        (lambda: scaled(0.3), {"dark"}),
        (lambda: scaled(0.05, 245), {"bright", "flat"}),
        (lambda: scaled(0.15, 110), {"flat"}),
        (lambda: Image.new("RGB", (300, 300), (220, 190, 180)), {"flat", "uniform"}),
        (lambda: GOOD.crop((0, 0, 640, 200)), {"long"}),
        (lambda: GOOD.convert("L").convert("RGB"), {"grey"}),
    ],
)
def test_issues(make: Callable[[], Image.Image], expected: set[str]):
    assert issues_of(make()) == expected


def test_an_image_that_was_not_read_has_no_issue():
    assert {float(values[0]) for values in badness(np.zeros(1, ROW)).values()} == {0.0}


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (9000, 2), (33, 33)])
def test_odd_sizes_are_measured(size: tuple[int, int]):
    assert measure(np.zeros((*size, 3), np.uint8))[:2] == size[::-1]
