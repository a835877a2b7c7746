"""Read a tree of class folders, and define which folders count as classes and which files count as images. This module
does not import torch, because the checks before a run use it."""

import glob
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from imagenet_ddp.data.sources.base import one_form
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.paths import IMAGE_EXTENSIONS, describe_path
from imagenet_ddp.system.text import shorten_list

NUM_THREADS = 8  # that wait for a disk at the same time

T = TypeVar("T")
R = TypeVar("R")

# Folders that systems and programs make beside the images, which contain thumbnails, deleted files or nothing. Hidden
# folders, such as .ipynb_checkpoints, are skipped without being listed here.
_OF_SYSTEMS = frozenset(
    ("@eadir", "@tmp", "#recycle", "@recycle", "#snapshot", "$recycle.bin", "recycler", "system volume information",
     "lost+found", "__macosx", "__pycache__", "thumbs", "thumbnails", "_thumbs", "_thumbnails")
)  # fmt: skip


def _is_skipped(folder: str) -> bool:
    return folder.startswith(".") or folder.lower() in _OF_SYSTEMS


def is_image(name: str) -> bool:
    """Return whether a file has the extension of an image. Hidden files never count, because macOS adds ._photo.jpg to
    photo.jpg."""
    _, dot, extension = name.rpartition(".")  # os.path.splitext takes three times as long
    return dot + extension.lower() in IMAGE_EXTENSIONS and not name.startswith(".")


def class_folders(folder: Path) -> list[str]:
    """Return the sorted names of the sub-folders, without hidden folders, folders that systems make, and links to a
    parent folder."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not _is_skipped(entry.name) and _is_class(entry))


def foreign_classes(train: list[str], val: list[str]) -> list[str]:
    """Return a message about the classes that only the validation images have, or [] if there are none. A class without
    validation images is allowed."""
    train, val = (list(dict.fromkeys(map(one_form, names))) for names in (train, val))
    if not (only_val := sorted(set(val) - set(train))):
        return []
    hint = "rename those folders as in train, or remove them"
    return [
        f"each class of val must also be a class of train, but {len(only_val)} of {len(val)} "
        f"{'is' if len(only_val) == 1 else 'are'} not: {shorten_list(only_val)}. Hint: {hint}."
    ]


def list_folder(folder: Path) -> tuple[list[str], Counter[str]]:
    """Return the sorted paths of all images below a folder, and the number of files left out by reason. The paths are
    relative to the folder, with / between the parts. Reasons are "hidden", "special", "linked" (a link to a folder,
    which is not followed), "of systems" (a folder, which is skipped), or an extension. Hidden folders are skipped."""
    images, left_out = [], Counter[str]()
    for kind, path in _walk(str(folder)):
        if kind == "image":
            images.append(path)
        else:
            left_out[kind] += 1
    return sorted(images), left_out


def files_beside(folder: Path) -> Counter[str]:
    """Count the files directly in a folder of class folders by reason: "beside" for images, otherwise the reasons from
    list_folder."""
    kinds = Counter("beside" if kind == "image" else kind for kind, _ in _entries(str(folder)))
    return Counter({kind: number for kind, number in kinds.items() if kind not in ("folder", "linked")})


def has_image(folder: Path) -> bool:
    """Return whether there is at least one image below a folder. The search stops at the first image."""
    return any(kind == "image" for kind, _ in _walk(str(folder)))


def _walk(folder: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, path) of everything below a folder except folders."""
    todo = [""]
    while todo:
        prefix = todo.pop()
        for kind, name in _entries(f"{folder}/{prefix}"):
            if kind == "folder":
                todo.append(f"{prefix}{name}/")
            else:
                yield kind, prefix + name


def _entries(folder: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) for each entry of one folder except hidden folders. kind: "image", "folder", or the reason why
    the entry is left out."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if is_image(name) and _is(entry.is_file):  # true of nearly all entries
                yield "image", name
            elif _is(entry.is_dir):
                if name.lower() in _OF_SYSTEMS:
                    yield "of systems", name
                elif not name.startswith("."):
                    yield "linked" if entry.is_symlink() else "folder", name
            elif is_image(name):
                # reading a pipe or a device would never end; a broken link is kept, so that reading it reports an error
                yield "special" if os.path.exists(entry.path) else "image", name  # noqa: PTH110 (raises no error)
            else:
                yield "hidden" if name.startswith(".") else os.path.splitext(name)[1].lower(), name  # noqa: PTH122


def _is(test: Callable[[], bool]) -> bool:
    try:
        return test()
    except OSError:  # a circular link
        return False


def _is_class(entry: os.DirEntry[str]) -> bool:
    """Return whether this entry is a folder, or a link to a folder that does not contain the link."""
    if not _is(entry.is_dir) or not entry.is_symlink():
        return _is(entry.is_dir)
    path = Path(entry.path)
    return not path.parent.resolve().is_relative_to(path.resolve())


def find_images(pattern: str) -> list[str]:
    """Return the paths of all images below a folder, of a single file, or of all files that match a pattern. Raises
    ConfigError if there are none."""
    if pattern and Path(pattern).is_dir():  # "" would be the working folder
        found = [str(Path(pattern) / name) for name in list_folder(Path(pattern))[0]]
    elif Path(pattern).is_file():
        found = [pattern]
    else:
        found = sorted(path for path in glob.glob(pattern, recursive=True) if Path(path).is_file())
    if not found:
        raise ConfigError(_no_images(pattern))
    return found


def validate_images(pattern: str) -> list[str]:
    """Return a mistake if there is nothing that find_images could find. Searches only until the first match."""
    if pattern and (Path(pattern).exists() or any(glob.iglob(pattern, recursive=True))):
        return []
    return [_no_images(pattern)]


def _no_images(pattern: str) -> str:
    path, what = Path(pattern), "got none"
    if pattern and path.is_dir():
        what = f"but the folder {describe_path(path)} contains none"
    elif pattern and pattern == glob.escape(pattern) and not path.exists():
        what = f"but {describe_path(path)} does not exist"
    return f"images={pattern} must match image files, {what}. Hint: set 'images=FOLDER/*.jpg'."


def map_concurrently(function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield function(item) for each item, in order, from several threads, because a network disk answers slowly.

    The threads are daemons, because the threads of a ThreadPoolExecutor would keep the process from ending while a disk
    does not respond.
    """
    futures: list[Future[R]] = [Future() for _ in items]
    todo = deque(zip(futures, items, strict=True))

    def work() -> None:
        with suppress(IndexError):
            while True:
                future, item = todo.popleft()
                try:
                    future.set_result(function(item))
                except BaseException as error:
                    future.set_exception(error)

    for _ in range(min(NUM_THREADS, len(items))):
        threading.Thread(target=work, name="disk", daemon=True).start()
    try:
        for future in futures:
            yield future.result()
    finally:
        todo.clear()
