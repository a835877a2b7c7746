"""Read a tree of class folders: what counts as a class and as an image. No torch: the checks before the start use this
too."""

import glob
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import shorten_list

# torchvision's list, and three formats Pillow reads too
EXTENSIONS = frozenset(
    [".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".avif", ".jp2"]
)


def is_image(name: str) -> bool:
    """Return whether the extension is an image's; hidden files never count (macOS adds ._photo.jpg to photo.jpg)."""
    _, dot, extension = name.rpartition(".")  # os.path.splitext takes three times as long
    return dot + extension.lower() in EXTENSIONS and not name.startswith(".")


def class_folders(folder: Path) -> list[str]:
    """Return the names of the sub-folders, sorted, without hidden ones and links to a parent folder."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_class(entry))


def class_differences(train: list[str], val: list[str]) -> list[str]:
    """Report classes that only one of the two splits has, in at most one sentence."""
    only_train, only_val = sorted(set(train) - set(val)), sorted(set(val) - set(train))
    if not only_train and not only_val:
        return []
    parts = [f"{len(only_train)} only in train: {shorten_list(only_train)}"] if only_train else []
    parts += [f"{len(only_val)} only in val: {shorten_list(only_val)}"] if only_val else []
    return [
        f"train and val must have the same classes, but train has {len(train)} and val {len(val)}, "
        f"{'; '.join(parts)}. Hint: rename or remove those folders."
    ]


def list_folder(folder: Path) -> tuple[list[str], Counter[str]]:
    """Return the paths of all images below folder, relative to it, sorted, with / between the parts; and how many
    files were left out, by reason: "hidden", "special", "linked" (a link to a folder, which is not followed), or an
    extension. Hidden folders are not looked into."""
    images, left_out = [], Counter[str]()
    for kind, path in _walk(str(folder)):
        if kind == "image":
            images.append(path)
        else:
            left_out[kind] += 1
    return sorted(images), left_out


def files_beside(folder: Path) -> Counter[str]:
    """Count the files directly in a folder of class folders: "beside" for images, other reasons as in list_folder."""
    kinds = Counter("beside" if kind == "image" else kind for kind, _ in _entries(str(folder)))
    return Counter({kind: number for kind, number in kinds.items() if kind not in ("folder", "linked")})


def has_image(folder: Path) -> bool:
    """Return whether there is at least one image; stop at the first."""
    return any(kind == "image" for kind, _ in _walk(str(folder)))


def _walk(folder: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, path) of everything but folders."""
    todo = [""]
    while todo:
        prefix = todo.pop()
        for kind, name in _entries(f"{folder}/{prefix}"):
            if kind == "folder":
                todo.append(f"{prefix}{name}/")
            else:
                yield kind, prefix + name


def _entries(folder: str) -> Iterator[tuple[str, str]]:
    """Yield (image, folder, or why it is left out; name) for one folder, without hidden folders."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if is_image(name) and _is(entry.is_file):  # nearly all are
                yield "image", name
            elif _is(entry.is_dir):
                if not name.startswith("."):
                    yield "linked" if entry.is_symlink() else "folder", name
            elif is_image(name):
                # a pipe or a device would be read for ever; a broken link is kept, so that reading reports it
                yield "special" if os.path.exists(entry.path) else "image", name  # noqa: PTH110 (raises no error)
            else:
                yield "hidden" if name.startswith(".") else os.path.splitext(name)[1].lower(), name  # noqa: PTH122


def _is(test: Callable[[], bool]) -> bool:
    try:
        return test()
    except OSError:  # a link in a circle
        return False


def _is_class(entry: os.DirEntry[str]) -> bool:
    """Return whether this is a folder, or a link to one that does not contain it."""
    if not _is(entry.is_dir) or not entry.is_symlink():
        return _is(entry.is_dir)
    path = Path(entry.path)
    return not path.parent.resolve().is_relative_to(path.resolve())


def find_images(pattern: str) -> list[str]:
    """Find all files with an image extension in a folder, or the file itself, or the files matching a pattern. Raises
    ConfigError if there are none."""
    if pattern and Path(pattern).is_dir():  # "" would be the working folder
        found = [str(Path(pattern) / name) for name in list_folder(Path(pattern))[0]]
    elif Path(pattern).is_file():
        found = [pattern]
    else:
        found = sorted(path for path in glob.glob(pattern, recursive=True) if Path(path).is_file())
    if not found:
        raise ConfigError(f"images={pattern} must match image files, got none. Hint: 'images=FOLDER/*.jpg'.")
    return found
