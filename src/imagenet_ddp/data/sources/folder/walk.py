"""List all images below a folder of class folders."""

import time
from collections import Counter
from pathlib import Path

import numpy as np

from imagenet_ddp.data.decode import DEFAULT, Reading
from imagenet_ddp.data.sources.base import Names
from imagenet_ddp.data.sources.class_names import one_form
from imagenet_ddp.data.sources.folder.disk_threads import map_concurrently
from imagenet_ddp.data.sources.folder.images import FileImages
from imagenet_ddp.data.sources.folder.scan import class_folders, files_beside, list_folder
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.text import count_noun

SAY_EVERY_S = 10.0


def describe_left_out(left_out: Counter[str]) -> str:
    """Return a description of FileImages.left_out, or "" if no file was left out."""
    kinds = left_out.copy()
    parts = [
        f"{number:,} {words}"
        for kind, words in (
            ("beside", "outside the class folders"),
            ("hidden", "hidden"),
            ("linked", "linking to folders"),
            ("special", "neither files nor folders"),
            ("of systems", "folders of thumbnails or deleted files"),
        )
        if (number := kinds.pop(kind, 0))
    ]
    if others := kinds.total():
        most_first = sorted(kinds, key=lambda kind: (-kinds[kind], not kind, kind))
        names = [kind or "none" for kind in most_first[:4]] + (["..."] if len(kinds) > 4 else [])
        parts.append(f"{others:,} without an image extension ({', '.join(names)})")
    total = left_out.total()
    were = "was" if total == 1 else "were"
    return f"{count_noun(total, 'file')} {were} left out: {', '.join(parts)}" if total else ""


def list_images(folder: Path, classes: list[str], reading: Reading = DEFAULT) -> FileImages:
    """List the images below folder/<class> for each class, at any depth, sorted within each class.

    A class without a folder has no images; folders whose names differ only in Unicode form are one class. Prints a line
    of progress every SAY_EVERY_S seconds. Raises PermissionError, and ConfigError for other disk errors.
    """
    paths: list[str] = []
    counts: list[int] = []
    last_s = time.monotonic()

    def list_class(names: list[str]) -> tuple[list[str], Counter[str]]:
        images, more = list[str](), Counter[str]()
        for name in names:
            found, others = list_folder(folder / name)
            images += [f"{name}/{image}" for image in found]
            more += others
        return images, more

    try:
        left_out = files_beside(folder) if folder.is_dir() else Counter[str]()
        stored: dict[str, list[str]] = {}
        for name in class_folders(folder) if folder.is_dir() else []:
            stored.setdefault(one_form(name), []).append(name)
        for images, more in map_concurrently(list_class, [stored.get(one_form(name), []) for name in classes]):
            paths += images
            counts.append(len(images))
            left_out += more
            if (now := time.monotonic()) - last_s >= SAY_EVERY_S:
                last_s = now
                print_message(
                    f"Listing {folder}: {len(paths):,} images in {len(counts):,} of {len(classes):,} classes so far."
                )
    except PermissionError:
        raise
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder} must be readable, but reading it failed: {error.strerror or error}. Hint: "
            "check that its disk is still mounted, or set data.root=FOLDER to another folder."
        ) from error
    targets = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
    images = FileImages(folder, Names.of(paths), targets, reading)
    images.left_out = left_out
    return images
