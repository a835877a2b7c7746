"""Generate the built-in image set: ten kinds of coloured shapes and textures, written once into a folder of JPEG files.

With the same versions of numpy and Pillow, the same seed gives the same files. Every class draws its colours,
backgrounds, positions, sizes, angles, light and noise from the same distributions. Therefore the mean colour of an
image reveals almost nothing about its class. No class distinguishes left from right.
"""

import os
import secrets
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from imagenet_ddp.config.schema.data import ImageFolderData, ShapesData
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.data.sources.base import Pending, Scan, Source, SourceType
from imagenet_ddp.data.sources.folder import ImageFolder
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.files import cache_dir

CLASSES: tuple[str, ...] = (  # in the order of the sorted folder names
    *("checker", "circle", "cross", "dots", "ring"),
    *("spiral", "square", "star", "stripes", "triangle"),
)
TEXTURES = frozenset({"checker", "dots", "stripes"})
PARTS = ("train", "val")

Array = np.ndarray
_LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601
NUM_PER_CLASS = {"train": 240, "val": 50}
VERSION = 2  # part of the cache folder's name, so increase it whenever an image changes


class Shapes(SourceType[ShapesData]):
    default_root = "the cache folder"

    def scan(self, data: ShapesData, seed: int, purpose: Purpose, *, whole: bool = True) -> Scan:
        mistakes = list[str]()
        if data.root:
            mistakes.append(
                f"data.root must be null for data=shapes, which generates its images in the cache folder, got "
                f"{data.root}. Hint: set data.root=null."
            )
        return Scan(data, seed, purpose, mistakes, partial(self._open, data, seed, purpose), _pending(seed))

    def _open(self, data: ShapesData, seed: int, purpose: Purpose) -> Source:
        found = ImageFolder(self.options_for).scan(data.at(ensure(seed), ImageFolderData), seed, purpose)
        assert found.open is not None
        return found.open()


def _pending(seed: int) -> Pending | None:
    if (root := cache_folder(seed)).is_dir():
        return None
    train, val = (count * len(CLASSES) for count in NUM_PER_CLASS.values())
    return Pending(f"{train} training and {val} validation images will be generated in {root}", len(CLASSES))


def cache_folder(seed: int) -> Path:
    return cache_dir(os.environ) / f"shapes-v{VERSION}-seed{seed}"


def ensure(seed: int) -> Path:
    """Return the folder with train/<class>/*.jpg and val/<class>/*.jpg for this seed; generate it first if it is
    missing.

    Several processes may call this function at once. Each generates the images in its own temporary folder, but only
    the first can rename it, and all return the same folder. Raises ConfigError if the folder cannot be written.
    """
    folder = cache_folder(seed)
    if folder.is_dir():
        return folder
    # Hidden, with a random name, so that the leftovers of a killed process are never used or written into.
    draft = folder.parent / f".{folder.name}.{secrets.token_hex(8)}.part"
    try:
        _write(draft, seed)
        draft.rename(folder)
    except OSError as error:
        if folder.is_dir():  # another process was faster
            return folder
        raise ConfigError(
            f"{folder} must be a folder where the generated images can be written (14 MiB), but writing failed: "
            f"{error.strerror or error}. Hint: put XDG_CACHE_HOME=FOLDER before the command."
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _write(folder: Path, seed: int) -> None:
    for part, num_images in NUM_PER_CLASS.items():
        for name in CLASSES:
            target = folder / part / name
            target.mkdir(parents=True)
            for index in range(num_images):
                pixels, quality = draw(part, name, index, seed)
                Image.fromarray(pixels).save(target / f"{name}_{index:04d}.jpg", quality=quality)


def draw(part: str, name: str, index: int, seed: int) -> tuple[Array, int]:
    """Draw an image, uint8 (height, width, 3), with sides of 72 to 96 pixels. Return it and its JPEG quality.

    The result depends only on the arguments, not on earlier calls.
    """
    rng = np.random.default_rng([seed, PARTS.index(part), CLASSES.index(name), index])
    height, width = (int(side) for side in rng.integers(72, 97, 2))
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    side = min(height, width)
    back, plate, paint = _colours(rng)
    image = _background(rng, back, x, y)
    image = _clutter(rng, image, x, y)

    # The object has its own coordinates, in units of its radius. They are moved, rotated and squeezed.
    texture = name in TEXTURES
    radius = side * (rng.uniform(0.42, 0.65) if texture else rng.uniform(0.32, 0.48))
    free = 0.1 * side
    centre_x, centre_y = width / 2 + rng.uniform(-free, free), height / 2 + rng.uniform(-free, free)
    turn, squeeze = rng.uniform(0, 2 * np.pi), np.exp(rng.uniform(-0.1, 0.1))
    u = ((x - centre_x) * np.cos(turn) + (y - centre_y) * np.sin(turn)) / radius * squeeze
    v = ((y - centre_y) * np.cos(turn) - (x - centre_x) * np.sin(turn)) / radius / squeeze
    blob = _blob(rng, u / (1 if texture else 1.3), v / (1 if texture else 1.3))
    if rng.random() < 0.5:
        image = _paint(rng, image, blob * radius, plate, x, y)
    distance = DISTANCES[name](rng, u, v, radius)
    if texture:
        distance = np.maximum(distance, blob)
    image = _paint(rng, image, distance * radius, paint, x, y)

    # Light: a gradient over the image, then contrast and brightness. Finally, sensor noise is added.
    image *= 1 + rng.uniform(0, 0.35) * _ramp(rng, x, y)[..., None]
    image = (image - 0.5) * rng.uniform(0.65, 1.1) + 0.5 + rng.uniform(-0.12, 0.12)
    image += rng.normal(0, rng.uniform(0.005, 0.04), image.shape).astype(np.float32)
    return (image.clip(0, 1) * 255).round().astype(np.uint8), int(rng.integers(60, 96))


def _colours(rng: np.random.Generator) -> Array:
    """Draw the colours of background, plate and object, RGB in 0..1. The object's colour clearly differs from the other
    two."""
    while True:
        hue, saturation, value = rng.random(3), rng.beta(2, 2, 3), rng.uniform(0.25, 1, 3)
        wheel = np.abs((hue[:, None] * 6 + [0, 4, 2]) % 6 - 3) - 1  # the pure hue's red, green, blue
        colours = value[:, None] * (1 - saturation[:, None] * (1 - wheel.clip(0, 1)))
        gaps = colours[2] - colours[:2]
        if (np.hypot(np.abs(gaps @ _LUMA), 0.5 * np.linalg.norm(gaps, axis=1)) > 0.35).all():
            return colours.astype(np.float32)


def _ramp(rng: np.random.Generator, x: Array, y: Array) -> Array:
    """Return values from -1 to 1 across the image, in a random direction."""
    angle = rng.uniform(0, 2 * np.pi)
    ramp = (x - x.mean()) * np.cos(angle) + (y - y.mean()) * np.sin(angle)
    return ramp / np.abs(ramp).max()


def _background(rng: np.random.Generator, colour: Array, x: Array, y: Array) -> Array:
    """Draw a gradient to a similar colour, and smooth noise, which looks like clouds, streaks or grain, depending on
    its number of cells."""
    height, width = x.shape
    other = (colour + rng.normal(0, 0.18, 3)).clip(0, 1)
    cells = rng.integers(3, 28, 2)
    noise = rng.normal(0, 1, (int(cells[0]), int(cells[1]))).astype(np.float32)
    noise = np.asarray(Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC))
    mix = 0.5 + 0.5 * _ramp(rng, x, y) + rng.uniform(0.1, 0.4) * noise
    grey = rng.uniform(0, 0.05) * noise
    return (colour + mix[..., None] * (other - colour) + grey[..., None]).astype(np.float32)


def _clutter(rng: np.random.Generator, image: Array, x: Array, y: Array) -> Array:
    """Draw a few small discs, boxes and long bars in random colours behind the object."""
    height, width = x.shape
    for _ in range(rng.integers(0, 4)):
        colour = _colours(rng)[0]
        turn = rng.uniform(0, np.pi)
        dx, dy = x - rng.uniform(0, width), y - rng.uniform(0, height)
        u, v = dx * np.cos(turn) + dy * np.sin(turn), dy * np.cos(turn) - dx * np.sin(turn)
        kind = rng.integers(3)
        if kind == 0:
            distance = np.hypot(u, v) - rng.uniform(2, 7)
        elif kind == 1:
            distance = np.maximum(np.abs(u) - rng.uniform(2, 7), np.abs(v) - rng.uniform(2, 7))
        else:
            distance = np.abs(u) - rng.uniform(0.6, 2.5)
        cover = (0.5 - distance).clip(0, 1)[..., None] * np.float32(rng.uniform(0.3, 0.9))
        image = image + cover * (colour - image)
    return image


def _paint(rng: np.random.Generator, image: Array, distance: Array, colour: Array, x: Array, y: Array) -> Array:
    """Paint a shaded colour with a soft shadow. distance: distance to the edge in pixels, negative inside."""
    shade = colour * (1 + rng.uniform(0, 0.25) * _ramp(rng, x, y)[..., None])
    shadow = rng.uniform(0, 0.4) * (1 - distance / rng.uniform(2, 6)).clip(0, 1)
    image = image * (1 - shadow[..., None])
    cover = (0.5 - distance / rng.uniform(1, 1.8)).clip(0, 1)[..., None]
    return (image + cover * (shade - image)).astype(np.float32)


def _blob(rng: np.random.Generator, u: Array, v: Array) -> Array:
    angle = np.arctan2(v, u)
    edge = 1 + sum(rng.uniform(0, 0.3 / n) * np.sin(n * angle + rng.uniform(0, 2 * np.pi)) for n in (2, 3, 5))
    return np.hypot(u, v) - edge


def _star(u: Array, v: Array, points: int, inner: float) -> Array:
    """Return the signed distance to a star with points at radius 1 and notches at radius inner. An inner radius of
    cos(pi/points) gives a regular polygon."""
    half = np.pi / points
    angle = np.abs((np.arctan2(v, u) % (2 * half)) - half)  # 0 at a notch, half at a point
    notch, point = np.array([inner, 0.0]), np.array([np.cos(half), np.sin(half)])
    normal = np.array([point[1] - notch[1], notch[0] - point[0]])
    normal = normal / np.linalg.norm(normal)
    r = np.hypot(u, v)
    return r * np.cos(angle) * normal[0] + r * np.sin(angle) * normal[1] - notch @ normal


def _bands(u: Array, period: float, share: float) -> Array:
    """Return the signed distance to bands that repeat along u with this period, and cover this share of it."""
    return (np.abs(u / period % 1 - 0.5) - share / 2) * period


def _checker(rng: np.random.Generator, u: Array, v: Array, radius: float) -> Array:
    period = rng.uniform(32, 46) / radius  # far coarser than dots, even if only 48 pixels of the image are left
    a, b = _bands(u, period, 0.5), _bands(v, period, 0.5)
    return np.maximum(np.minimum(a, b), -np.maximum(a, b))


def _dots(rng: np.random.Generator, u: Array, v: Array, radius: float) -> Array:
    period = rng.uniform(15, 23) / radius
    row = np.floor(v / (0.87 * period))  # rows are closer than columns; every other row is shifted by half a period
    spot = np.hypot(_bands(u + row % 2 * period / 2, period, 0), _bands(v, 0.87 * period, 0))
    return spot - rng.uniform(0.18, 0.26) * period


def _spiral(rng: np.random.Generator, u: Array, v: Array, radius: float) -> Array:
    r, turns = np.hypot(u, v), rng.uniform(1.8, 2.8)
    sense = 1 if rng.random() < 0.5 else -1
    return np.maximum(
        _bands(r + sense * np.arctan2(v, u) / (2 * np.pi * turns), 1 / turns, rng.uniform(0.4, 0.55)), r - 1
    )


def _cross(rng: np.random.Generator, u: Array, v: Array, radius: float) -> Array:
    a, b, arm = np.abs(u), np.abs(v), rng.uniform(0.2, 0.36)
    return np.minimum(np.maximum(a - 1, b - arm), np.maximum(b - 1, a - arm))


# Signed distance to the object's edge, negative inside, in the object's own coordinates. radius: its radius in pixels.
DISTANCES: dict[str, Callable[[np.random.Generator, Array, Array, float], Array]] = {
    "checker": _checker,
    "circle": lambda rng, u, v, radius: np.hypot(u, v) - 0.9,
    "cross": _cross,
    "dots": _dots,
    "ring": lambda rng, u, v, radius: np.abs(np.hypot(u, v) - 0.75) - rng.uniform(0.13, 0.25),
    "spiral": _spiral,
    "square": lambda rng, u, v, radius: np.maximum(np.abs(u), np.abs(v)) - 0.8,
    "star": lambda rng, u, v, radius: _star(u, v, int(rng.integers(5, 7)), rng.uniform(0.42, 0.55)),
    "stripes": lambda rng, u, v, radius: _bands(u, rng.uniform(9, 17) / radius, rng.uniform(0.4, 0.6)),
    "triangle": lambda rng, u, v, radius: _star(u, v, 3, 0.5),
}
