"""Measure what makes a photograph hard to recognise: size, blur, darkness, contrast, shape.

Each has one threshold, with its reason. Those of brightness, information and shape are cleanvision's (Cleanlab,
github.com/cleanlab/cleanvision). All measures but size and shape are those of a copy of about 256 pixels, because nets
see about as many.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image

SIDE = 256  # pixels of the shorter side of the copy that is measured
LEAST_SIDE = 32  # of an image whose blur is measured; smaller ones are reported as small
REACH = 8  # pixels on each side of an edge in which its darkest and brightest pixel are looked for
EDGE_SHARE = 0.01  # of the pixels, those with the steepest change: a sharp subject before a soft background is sharp
MOST_EDGES = 200  # measured along each axis
LEAST_RANGE = 24  # grey levels of an edge; smaller ones may be noise
LEAST_EDGES = 20
GREY = "without colours"  # an issue, but no fault
MOST_COLOUR = 8  # levels between the channels of a grey image, which JPEG may tint


class Quality(NamedTuple):
    """What was measured of one image. edge_width: pixels of the copy over which the steepest edges go from dark to
    bright, NaN if there are too few edges. brightest, darkest: grey levels, 0 to 1, below which 99 % and 5 % of the
    pixels are. contrast: grey levels, 0 to 1, between 1 % and 99 %. information_bits: entropy of the levels of all
    channels together, as cleanvision has it: of a grey image, 1.58 bits more than that of its grey levels."""

    width: int
    height: int
    edge_width: float
    brightest: float
    darkest: float
    contrast: float
    information_bits: float
    is_grey: bool


# of an array with the qualities of the images of a split; width 0: the image could not be read
ROW = np.dtype([("width", "i4"), ("height", "i4"), ("edge_width", "f4"), ("brightest", "f4"), ("darkest", "f4"),
                ("contrast", "f4"), ("information_bits", "f4"), ("is_grey", "?")])  # fmt: skip


class Issue(NamedTuple):
    """One kind of poor quality. badness: of an array of ROW, float (N,), above 1 beyond the threshold. reason: the
    threshold in words. name: as said of an image, and of several."""

    name: str
    badness: Callable[[np.ndarray], np.ndarray]
    reason: str


def _short(rows: np.ndarray) -> np.ndarray:
    return np.minimum(rows["width"], rows["height"])


ISSUES = (
    Issue(
        "blurry", lambda rows: rows["edge_width"] / 5,
        "its sharpest edges are more than 5 pixels wide when the image has 256: it shows what 50 pixels would",
    ),
    Issue("too small", lambda rows: 64 / _short(rows), "its shorter side has fewer than 64 pixels; nets see about 224"),
    Issue(
        "too dark", lambda rows: 0.32 / np.maximum(rows["brightest"], 1e-3),
        "99 % of its pixels are darker than a third (32 %) of white",
    ),
    Issue("too bright", lambda rows: rows["darkest"] / 0.95, "95 % of its pixels are brighter than 95 % of white"),
    Issue(
        "low in contrast", lambda rows: 0.2 / np.maximum(rows["contrast"], 1e-3),
        "its dark and its bright pixels are less than 20 % of the way from black to white apart",
    ),
    Issue(
        "nearly of one colour", lambda rows: 3 / np.maximum(rows["information_bits"], 1e-3),
        "its colours have less than 3 bits of information: of a grey image, as if it had 3 grey levels in place of 256",
    ),
    Issue(
        "long and narrow", lambda rows: 0.35 * np.maximum(rows["width"], rows["height"]) / _short(rows),
        "one side is about three times as long as the other (1 to 0.35), so that a square crop misses most of it",
    ),
    Issue(GREY, lambda rows: 2.0 * rows["is_grey"], "it has no colours, while most of the others do"),
)  # fmt: skip


def badness(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return, by the name of each issue, how far each image is beyond its threshold, which is 1: float (N,), 0 for an
    image that could not be read. rows: array of ROW."""
    with np.errstate(divide="ignore", invalid="ignore"):  # of unread images
        found = {issue.name: np.where(rows["width"] > 0, issue.badness(rows), 0.0) for issue in ISSUES}
    return {name: np.nan_to_num(values, nan=0.0) for name, values in found.items()}


def measure(pixels: np.ndarray) -> Quality:
    """Measure an image, uint8 (H, W, 3), RGB."""
    height, width = pixels.shape[:2]
    stride = max(min(height, width) // (2 * SIDE), 1)  # a mean over all pixels would take longer than decoding them
    image = Image.fromarray(np.ascontiguousarray(pixels[::stride]))
    if stride > 1:
        image = image.resize((width // stride, image.height), Image.Resampling.NEAREST)
    image = image.reduce(max(round(min(image.size) / SIDE), 1))
    grey = image.convert("L")
    shares = np.cumsum(grey.histogram()) / (grey.width * grey.height)
    one, five, most = (int(np.searchsorted(shares, share)) / 255 for share in (0.01, 0.05, 0.99))
    colours = np.asarray(image)[::4, ::4].astype(np.int16)
    return Quality(
        width, height, _edge_width(np.asarray(grey)), most, five, most - one, float(image.entropy()),
        bool((np.abs(colours[..., 1:] - colours[..., :1]) <= MOST_COLOUR).all()),
    )  # fmt: skip


def _edge_width(grey: np.ndarray) -> float:
    """Return the median width of the steepest edges, in pixels of an image of SIDE. grey: uint8 (H, W)."""
    if (short := min(grey.shape)) < LEAST_SIDE:
        return float("nan")
    widths = np.concatenate([_widths(grey), _widths(grey.T)])
    return float(np.median(widths)) * SIDE / max(short, SIDE) if len(widths) >= LEAST_EDGES else float("nan")


def _widths(grey: np.ndarray) -> np.ndarray:
    """Return the widths of the steepest edges along the rows: the range of the grey levels around an edge, divided by
    the change at the edge from one pixel to the next."""
    values = np.ascontiguousarray(grey)
    left, right = values[:, REACH : -REACH - 1], values[:, REACH + 1 : -REACH]
    steps = np.maximum(left, right) - np.minimum(left, right)  # uint8
    at_least = np.cumsum(np.bincount(steps.ravel(), minlength=256)[::-1])[::-1]
    least = max(int(np.searchsorted(-at_least, -EDGE_SHARE * steps.size)), 1)
    edges = np.flatnonzero(steps >= least)
    edges = edges[:: max(len(edges) // MOST_EDGES, 1)]
    rows, columns = np.divmod(edges, steps.shape[1])
    around = values[rows[:, None], columns[:, None] + np.arange(2 * REACH + 2)]
    ranges = around.max(1).astype(np.int16) - around.min(1)
    return (ranges / steps.ravel()[edges])[ranges >= LEAST_RANGE]
