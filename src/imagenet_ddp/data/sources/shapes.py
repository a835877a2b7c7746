"""Generate the built-in image set: ten kinds of coloured shapes and textures, written once into a folder of JPEG files.

With the same versions of numpy and Pillow, the same seed gives the same files. shapes_drawing.py draws the images.
"""

import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from imagenet_ddp.data.sources.base import Pending, Source
from imagenet_ddp.data.sources.folder import ImageFolder
from imagenet_ddp.data.sources.shapes_drawing import CLASSES, draw
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.paths import cache_dir

NUM_PER_CLASS = {"train": 240, "val": 50}
FILE_KIB = 5  # measured average size of a file on a disk with blocks of 4 KiB
VERSION = 2  # part of the cache folder's name, so increase it whenever an image changes


class Shapes(ImageFolder):
    default_root = "the cache folder"

    def check(self, data: Mapping[str, Any], environ: Mapping[str, str], verb: str) -> list[str]:
        if not data["root"]:
            return []
        return [
            f"data.root must be null for data=shapes, which generates its images in the cache folder, got "
            f"{data['root']}. Hint: set data.root=null."
        ]

    def recognise(self, root: str, folder: Path, otherwise: str) -> list[str]:
        return []

    def open(self, data: Mapping[str, Any], seed: int, environ: Mapping[str, str], verb: str) -> Source:
        return super().open({**data, "root": str(ensure(seed, environ))}, seed, environ, verb)

    def pending(self, data: Mapping[str, Any], seed: int, environ: Mapping[str, str]) -> Pending | None:
        if (root := cache_folder(seed, environ)).is_dir():
            return None
        train, val = (count * len(CLASSES) for count in NUM_PER_CLASS.values())
        return Pending(f"{train} training and {val} validation images will be generated in {root}", len(CLASSES))


def cache_folder(seed: int, environ: Mapping[str, str]) -> Path:
    return cache_dir(environ) / f"shapes-v{VERSION}-seed{seed}"


def ensure(seed: int, environ: Mapping[str, str]) -> Path:
    """Return the folder with train/<class>/*.jpg and val/<class>/*.jpg for this seed; generate it first if it is
    missing.

    Several processes may call this function at once. Each generates the images in its own temporary folder, but only
    the first can rename it, and all return the same folder. Raises ConfigError if the folder cannot be written.
    """
    folder = cache_folder(seed, environ)
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
        num_images = sum(NUM_PER_CLASS.values()) * len(CLASSES)
        raise ConfigError(
            f"{folder} must be a folder where the generated images can be written ({num_images} files, about "
            f"{num_images * FILE_KIB / 1024:.0f} MiB), but writing failed: {error.strerror or error}. Hint: put "
            "XDG_CACHE_HOME=FOLDER before the command."
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
