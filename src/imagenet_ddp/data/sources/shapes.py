"""The embedded image set: ten kinds of coloured shapes and textures, generated once into a folder of JPEG files.

The same seed gives the same files with the same versions of numpy and Pillow. What an image shows is drawn in
shapes_drawing.py. No torch here: it runs before torch is imported.
"""

import json
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from imagenet_ddp.data.sources.shapes_drawing import CLASSES, draw
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.paths import cache_dir

NUM_PER_CLASS = {"train": 240, "val": 50}
FILE_KIB = 5  # on disk, in blocks of 4 KiB: measured
VERSION = 2  # raise it whenever an image changes: the cache folder's name carries it
MARK = "shapes.json"  # at the top of a finished tree: which version, seed and numbers of images it holds


def ensure(root: Path | None, seed: int, environ: Mapping[str, str]) -> Path:
    """The folder with train/<class>/*.jpg and val/<class>/*.jpg for this seed, generated first where it is missing.

    root: where it shall be; None: a folder of its own per seed in cache_dir(environ).
    Several processes may call it at once: each generates beside the folder, the first to rename wins, all return the
    same. Raises ConfigError where the folder cannot be written, or holds something else.
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


def validate(root: str, seed: int | None) -> list[str]:
    """Report a data.root that neither holds the images nor can take them. seed: None where it is not known."""
    folder = Path(root)
    try:
        if seed is None and (folder / MARK).is_file():
            return []
        _is_finished(folder, seed or 0)
    except ConfigError as error:
        return error.mistakes
    return []


def _unusable(folder: Path, error: OSError) -> ConfigError:
    num_images = sum(NUM_PER_CLASS.values()) * len(CLASSES)
    return ConfigError(
        f"{folder} must be a folder where the generated images can be written and read ({num_images} files, "
        f"about {num_images * FILE_KIB / 1024:.0f} MiB), but: {error.strerror or error}. Hint: set data.root=FOLDER."
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
            f"data.root must be a new folder or generated images ({MARK} in it), but {folder} holds "
            f"other files. Hint: set data.root=NEW_FOLDER, or data=imagefolder for images of your own."
        )
    if found != _mark(seed):
        raise ConfigError(
            f"{folder} must hold generated images of {_mark(seed)}, but holds those of {found} "
            f"(from its {MARK}). Hint: set data.root=FOLDER, one for each seed."
        )
    missing = [f"{part}/{name}" for part in NUM_PER_CLASS for name in CLASSES if not (folder / part / name).is_dir()]
    if missing:
        raise ConfigError(
            f"{folder} must hold {len(NUM_PER_CLASS) * len(CLASSES)} class folders, but lacks "
            f"{', '.join(missing)}. Hint: delete {folder}, it will be generated again."
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
