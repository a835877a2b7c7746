"""The embedded image set: ten kinds of coloured shapes and textures, generated once into a folder of JPEG files.

Every class draws its colours, backgrounds, places, sizes, angles, light and noise from the same distributions, so the
mean colour of an image says next to nothing about its class, and no class is told apart by left and right. The same
seed gives the same files with the same versions of numpy and Pillow. No torch here: it runs before torch is imported.
"""

import json
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from imagenet_ddp.schema import ConfigError

CLASSES: tuple[str, ...] = (  # in the order of the sorted folder names
    *("checker", "circle", "cross", "dots", "ring"),
    *("spiral", "square", "star", "stripes", "triangle"),
)
TEXTURES = frozenset({"checker", "dots", "stripes"})
NUM_PER_CLASS = {"train": 240, "val": 50}
FILE_KIB = 5  # on disk, in blocks of 4 KiB: measured
VERSION = 1  # raise it whenever an image changes: the cache folder's name carries it
MARK = "shapes.json"  # at the top of a finished tree: which version, seed and numbers of images it holds

Array = np.ndarray
_LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601


def cache_dir(environ: Mapping[str, str]) -> Path:
    """$XDG_CACHE_HOME/imagenet_ddp, by default ~/.cache/imagenet_ddp. ConfigError: neither variable says a place."""
    xdg = environ.get("XDG_CACHE_HOME", "")
    if Path(xdg).is_absolute():  # the XDG base directory specification: a relative path is to be ignored
        return Path(xdg) / "imagenet_ddp"
    home = environ.get("HOME", "")
    if not Path(home).is_absolute():
        raise ConfigError(
            "HOME or XDG_CACHE_HOME is expected to name the folder for the generated images, but neither is an "
            "absolute path. HINT: set data.root=FOLDER."
        )
    return Path(home) / ".cache" / "imagenet_ddp"


def ensure(root: Path | None, seed: int, environ: Mapping[str, str]) -> Path:
    """The folder with train/<class>/*.jpg and val/<class>/*.jpg for this seed, generated first where it is missing.

    root: where it shall be; None: a folder of its own per seed in cache_dir(environ).
    Several processes may ask at once: each generates beside the place, the first to rename wins, all return the same.
    ConfigError: the place cannot be written, or holds something else.
    """
    folder = cache_dir(environ) / f"shapes-v{VERSION}-seed{seed}" if root is None else Path(root)
    if _is_finished(folder, seed):
        return folder
    # Hidden, and named by chance: what a killed process leaves behind is never taken for the set nor written into.
    draft = folder.parent / f".{folder.name}.{secrets.token_hex(8)}.part"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.mkdir()
            _write(draft, seed)
            draft.rename(folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except OSError as error:
        if _is_finished(folder, seed):  # another process was faster
            return folder
        raise _unusable(folder, error) from error
    return folder


def _unusable(folder: Path, error: OSError) -> ConfigError:
    num_images = sum(NUM_PER_CLASS.values()) * len(CLASSES)
    return ConfigError(
        f"{folder} is expected to be a folder where the generated images can be written and read ({num_images} files, "
        f"about {num_images * FILE_KIB / 1024:.0f} MiB), but: {error.strerror or error}. HINT: set data.root=FOLDER."
    )


def _mark(seed: int) -> dict[str, object]:
    return {"version": VERSION, "seed": seed, "num_per_class": NUM_PER_CLASS}


def _is_finished(folder: Path, seed: int) -> bool:
    """False: nothing is there, or an empty folder. ConfigError: something else is there."""
    try:
        if not any(folder.iterdir()):
            return False
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unusable(folder, error) from error
    try:
        found = json.loads((folder / MARK).read_text())
    except (FileNotFoundError, ValueError):
        found = None
    except OSError as error:
        raise _unusable(folder, error) from error
    if found is None:
        raise ConfigError(
            f"data.root is expected to be a new folder or generated images ({MARK} in it), but {folder} holds "
            f"other files. HINT: set data.root=FOLDER, or data=imagefolder for images of your own."
        )
    if found != _mark(seed):
        raise ConfigError(
            f"{folder} is expected to hold generated images of {_mark(seed)}, but holds those of {found} "
            f"(from its {MARK}). HINT: set data.root=FOLDER, one for each seed."
        )
    missing = [f"{part}/{name}" for part in NUM_PER_CLASS for name in CLASSES if not (folder / part / name).is_dir()]
    if missing:
        raise ConfigError(
            f"{folder} is expected to hold {len(NUM_PER_CLASS) * len(CLASSES)} class folders, but lacks "
            f"{', '.join(missing)}. HINT: delete {folder}, it will be generated again."
        )
    return True


def _write(folder: Path, seed: int) -> None:
    for part, num_images in NUM_PER_CLASS.items():
        for name in CLASSES:
            target = folder / part / name
            target.mkdir(parents=True)
            for index in range(num_images):
                pixels, quality = draw(part, name, index, seed)
                Image.fromarray(pixels).save(target / f"{name}_{index:04d}.jpg", quality=quality)
    (folder / MARK).write_text(json.dumps(_mark(seed)) + "\n")


def draw(part: str, name: str, index: int, seed: int) -> tuple[Array, int]:
    """One image (uint8, height by width by 3, sides of 72 to 96 pixels) and the JPEG quality it is to be saved with.

    Depends on its arguments alone, whatever was drawn before.
    """
    rng = np.random.default_rng([seed, list(NUM_PER_CLASS).index(part), CLASSES.index(name), index])
    height, width = (int(side) for side in rng.integers(72, 97, 2))
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    side = min(height, width)
    back, plate, paint = _colours(rng)
    image = _background(rng, back, x, y)
    image = _clutter(rng, image, x, y)

    # The object: its own coordinates (1 = its radius), moved, turned and squeezed.
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

    # Light: a gradient over the image, contrast, brightness; then the grain of a sensor.
    image *= 1 + rng.uniform(0, 0.35) * _ramp(rng, x, y)[..., None]
    image = (image - 0.5) * rng.uniform(0.65, 1.1) + 0.5 + rng.uniform(-0.12, 0.12)
    image += rng.normal(0, rng.uniform(0.005, 0.04), image.shape).astype(np.float32)
    return (image.clip(0, 1) * 255).round().astype(np.uint8), int(rng.integers(60, 96))


def _colours(rng: np.random.Generator) -> Array:
    """Of the background, the plate and the object: RGB in 0..1, the last well apart from both others."""
    while True:
        hue, saturation, value = rng.random(3), rng.beta(2, 2, 3), rng.uniform(0.25, 1, 3)
        wheel = np.abs((hue[:, None] * 6 + [0, 4, 2]) % 6 - 3) - 1  # the pure hue's red, green, blue
        colours = value[:, None] * (1 - saturation[:, None] * (1 - wheel.clip(0, 1)))
        gaps = colours[2] - colours[:2]
        if (np.hypot(np.abs(gaps @ _LUMA), 0.5 * np.linalg.norm(gaps, axis=1)) > 0.35).all():
            return colours.astype(np.float32)


def _ramp(rng: np.random.Generator, x: Array, y: Array) -> Array:
    """-1 to 1 across the image, in any direction."""
    angle = rng.uniform(0, 2 * np.pi)
    ramp = (x - x.mean()) * np.cos(angle) + (y - y.mean()) * np.sin(angle)
    return ramp / np.abs(ramp).max()


def _background(rng: np.random.Generator, colour: Array, x: Array, y: Array) -> Array:
    """A gradient towards a neighbouring colour, and smooth noise: clouds, streaks or grain by its number of cells."""
    height, width = x.shape
    other = (colour + rng.normal(0, 0.18, 3)).clip(0, 1)
    cells = rng.integers(3, 28, 2)
    noise = rng.normal(0, 1, (int(cells[0]), int(cells[1]))).astype(np.float32)
    noise = np.asarray(Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC))
    mix = 0.5 + 0.5 * _ramp(rng, x, y) + rng.uniform(0.1, 0.4) * noise
    grey = rng.uniform(0, 0.05) * noise
    return (colour + mix[..., None] * (other - colour) + grey[..., None]).astype(np.float32)


def _clutter(rng: np.random.Generator, image: Array, x: Array, y: Array) -> Array:
    """A few small discs, boxes and long bars in colours of their own, behind the object."""
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
    """Lay a shaded colour, over a soft shadow, where distance (pixels to the edge, below 0 inside) says so."""
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
    """A star with points at radius 1 and notches at radius inner; inner = cos(pi/points) makes a regular polygon."""
    half = np.pi / points
    angle = np.abs((np.arctan2(v, u) % (2 * half)) - half)  # 0 at a notch, half at a point
    notch, point = np.array([inner, 0.0]), np.array([np.cos(half), np.sin(half)])
    normal = np.array([point[1] - notch[1], notch[0] - point[0]])
    normal = normal / np.linalg.norm(normal)
    r = np.hypot(u, v)
    return r * np.cos(angle) * normal[0] + r * np.sin(angle) * normal[1] - notch @ normal


def _bands(u: Array, period: float, share: float) -> Array:
    """Signed distance to bands across u that cover this share of it."""
    return (np.abs(u / period % 1 - 0.5) - share / 2) * period


def _checker(rng: np.random.Generator, u: Array, v: Array, radius: float) -> Array:
    period = rng.uniform(22, 34) / radius
    a, b = _bands(u, period, 0.5), _bands(v, period, 0.5)
    return np.maximum(np.minimum(a, b), -np.maximum(a, b))


def _dots(rng: np.random.Generator, u: Array, v: Array, radius: float) -> Array:
    period = rng.uniform(15, 23) / radius
    row = np.floor(v / (0.87 * period))  # rows stand closer than columns, every other one is moved by half a period
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


# Signed distance to the edge, below 0 inside, in the object's own coordinates; radius: of the object, in pixels.
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
