"""List the image files of a tree of class folders, and read them by position.

Does not import torch, because the checks before a run use it.
"""

import errno
import glob
import hashlib
import os
import stat
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from imagenet_ddp.data.decoding.decode import DEFAULT, Picture, Reading, open_picture
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.sources.base import Images, Names, one_form
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.files import describe_path
from imagenet_ddp.system.text import count_noun

MAX_FILE_BYTES = 2**30  # twice the decoded size of the largest image that is accepted (pillow.MAX_PIXELS)
SAY_EVERY_S = 10.0
NUM_THREADS = 8  # that wait for a disk at the same time

T = TypeVar("T")
R = TypeVar("R")

# Extensions of image files: torchvision's list, three more formats that Pillow reads, and the other names of JPEGs
_JPEG = (".jpg", ".jpeg", ".jfif", ".jpe", ".jif", ".jfi", ".pjpeg", ".pjp")
IMAGE_EXTENSIONS = frozenset(
    [*_JPEG, ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".avif", ".jp2"]
)
HEIC = (".heic", ".heif")  # photographs of iPhones, which Pillow does not read
REASONS = {  # why a file or folder is left out
    "beside": "outside the class folders",
    "hidden": "hidden",
    "linked": "linking to folders",
    "of systems": "folders of thumbnails or deleted files",
}
# Folders that systems and programs make beside the images, which contain thumbnails, deleted files or nothing. Hidden
# folders, such as .ipynb_checkpoints, are skipped without being listed here.
_OF_SYSTEMS = frozenset(
    ("@eadir", "@tmp", "#recycle", "@recycle", "#snapshot", "$recycle.bin", "recycler", "system volume information",
     "lost+found", "__macosx", "__pycache__", "thumbs", "thumbnails", "_thumbs", "_thumbnails")
)  # fmt: skip


def is_image(name: str) -> bool:
    """Return whether a file has the extension of an image. Hidden files never count, because macOS adds ._photo.jpg to
    photo.jpg."""
    _, dot, extension = name.rpartition(".")  # os.path.splitext takes three times as long
    return dot + extension.lower() in IMAGE_EXTENSIONS and not name.startswith(".")


class ClassFolders(NamedTuple):
    """What one folder contains. names: of the sub-folders, sorted, without hidden folders, folders that systems make,
    and links to a folder that contains the link, whose images would be those of all classes. beside: number of other
    files by reason, as in FileImages.left_out."""

    names: list[str]
    beside: Counter[str]


def look_in(folder: Path) -> ClassFolders:
    names, beside = list[str](), Counter[str]()
    for kind, name in _entries(str(folder)):
        is_link = kind == "linked"
        if kind == "folder" or (is_link and not folder.resolve().is_relative_to((folder / name).resolve())):
            names.append(name)
        elif not is_link:
            beside["beside" if kind == "image" else kind] += 1
    return ClassFolders(sorted(names), beside)


def class_folders(folder: Path) -> list[str]:
    """Return the names of look_in."""
    return look_in(folder).names


def list_folder(folder: Path, *, whole: bool = True) -> tuple[list[str], Counter[str]]:
    """Return the sorted paths of all images below a folder, and the number of files left out by reason (REASONS, or an
    extension). The paths are relative to the folder, with / between the parts. Hidden folders are skipped. whole: False
    to stop at the first image."""
    images, left_out = [], Counter[str]()
    for kind, path in _walk(str(folder)):
        if kind != "image":
            left_out[kind] += 1
            continue
        images.append(path)
        if not whole:
            break
    return sorted(images), left_out


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
            # true of nearly all entries; reading a pipe would never end, and reading a broken link reports it
            if is_image(name) and (_leads_to(entry.is_file) or not os.path.exists(entry.path)):  # noqa: PTH110
                yield "image", name
            elif _leads_to(entry.is_dir):
                if name.lower() in _OF_SYSTEMS:
                    yield "of systems", name
                elif not name.startswith("."):
                    yield "linked" if entry.is_symlink() else "folder", name
            else:
                yield "hidden" if name.startswith(".") else os.path.splitext(name)[1].lower(), name  # noqa: PTH122


def _leads_to(is_kind: Callable[[], bool]) -> bool:
    """Return what is_file or is_dir of an entry does, and false for a link to itself, for which they raise OSError."""
    try:
        return is_kind()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False


class Heic(NamedTuple):
    """What messages say about HEIC photographs, which are not read. words: after the number of images. hint: what to do
    before the rest of the hint. Both are "" if there are none."""

    words: str
    hint: str

    @classmethod
    def of(cls, left_out: Counter[str]) -> "Heic":
        if not (number := sum(left_out[kind] for kind in HEIC)):
            return cls("", "")
        hint = "convert the HEIC files to JPEG (such as by `magick mogrify -format jpg FOLDER/*.heic`), then "
        return cls(f" (but {count_noun(number, 'HEIC file')}, a format that is not read)", hint)


def find_images(pattern: str) -> list[str]:
    """Return the paths of all images below a folder, of a single file, or of all files that match a pattern. Raises
    ConfigError if there are none."""
    heic = Heic("", "")
    if pattern and Path(pattern).is_dir():  # "" would be the working folder
        names, left_out = list_folder(Path(pattern))
        found, heic = [str(Path(pattern) / name) for name in names], Heic.of(left_out)
    elif Path(pattern).is_file():
        found = [pattern]
    else:
        found = sorted(path for path in glob.glob(pattern, recursive=True) if Path(path).is_file())
    if not found:
        raise ConfigError(_no_images(pattern, heic))
    return found


def validate_images(pattern: str) -> list[str]:
    """Return a mistake if there is nothing that find_images could find. Searches only until the first match."""
    if pattern and (Path(pattern).exists() or any(glob.iglob(pattern, recursive=True))):
        return []
    return [_no_images(pattern, Heic("", ""))]


def _no_images(pattern: str, heic: Heic) -> str:
    what = f"images={pattern} must match image files, but {describe_path(Path(pattern))} matches none{heic.words}"
    return f"{what}. Hint: {heic.hint}set 'images=FOLDER/*.jpg'."


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


def read_file(path: str) -> bytes:
    """Read a whole image file. Raises UnreadableImage if it is not a regular file or larger than MAX_FILE_BYTES, and
    OSError if it cannot be read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a FIFO would otherwise wait for a writer
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableImage(path, "it is not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise UnreadableImage(path, f"the file is too large ({status.st_size / 2**30:,.1f} GiB)")
        return open(descriptor, "rb", buffering=0, closefd=False).read()
    finally:
        os.close(descriptor)


class FileImages(Images):
    """Image files below one folder. names: paths relative to the folder. rows: int64 (N,), the positions in `names` of
    the images in this split; None: all names."""

    is_encoded = True

    def __init__(
        self,
        folder: Path,
        names: Names,
        targets: np.ndarray,
        reading: Reading = DEFAULT,
        rows: np.ndarray | None = None,
    ):
        self.folder, self.location, self.reading = folder, str(folder), reading
        self.names, self.targets, self._rows = names, targets, rows
        self.left_out: Counter[str] = Counter()  # number of files by reason
        # uint64 (N,), by which an image is recognised under another name; set for splits that split_validation makes
        self.keys: np.ndarray | None = None

    def path(self, index: int) -> str:
        return str(self.folder / self.names[index if self._rows is None else int(self._rows[index])])

    def encoded(self, index: int) -> bytes:
        return read_file(self.path(index))

    def open(self, index: int) -> Picture:
        return open_picture(self.encoded(index), self.path(index), self.reading)

    def together(self, other: "FileImages") -> "FileImages":
        """Return the images of two splits of one list, in the order of the list."""
        assert self._rows is not None and other._rows is not None and self.names is other.names
        rows = np.concatenate([self._rows, other._rows])
        order = np.argsort(rows)
        targets = np.concatenate([self.targets, other.targets])[order]
        images = FileImages(self.folder, self.names, targets, self.reading, rows[order])
        if self.keys is not None and other.keys is not None:
            images.keys = np.concatenate([self.keys, other.keys])[order]
        return images

    def subset(self, indices: np.ndarray) -> "FileImages":
        rows = np.asarray(indices, dtype=np.int64) if self._rows is None else self._rows[indices]
        images = FileImages(self.folder, self.names, self.targets[indices], self.reading, rows)
        images.weights = None if self.weights is None else self.weights[indices]
        images.keys = None if self.keys is None else self.keys[indices]
        return images


def digest(*splits: FileImages | None) -> str:
    """Return eight hexadecimal digits that depend on the name, position and weight of every image."""
    found = hashlib.sha256()
    for images in splits:
        if images is None:
            continue
        for array in (images.names.text, images.names.ends, images.targets):
            found.update(array.data)
        if images.weights is not None:
            found.update(images.weights.data)
    return found.hexdigest()[:8]


def describe_left_out(left_out: Counter[str]) -> str:
    """Return a description of FileImages.left_out, or "" if no file was left out."""
    parts = [f"{left_out[kind]:,} {words}" for kind, words in REASONS.items() if left_out[kind]]
    others = Counter({kind or "none": number for kind, number in left_out.items() if kind not in REASONS})
    if others:
        names = sorted(others, key=lambda kind: (-others[kind], kind))[:4] + (["..."] if len(others) > 4 else [])
        parts.append(f"{others.total():,} without an image extension ({', '.join(names)})")
    were = "was" if left_out.total() == 1 else "were"
    return f"{count_noun(left_out.total(), 'file')} {were} left out: {', '.join(parts)}" if parts else ""


def list_images(
    folder: Path,
    classes: list[str],
    reading: Reading = DEFAULT,
    inside: ClassFolders | None = None,
    *,
    whole: bool = True,
) -> FileImages:
    """List the images below folder/<class> for each class, at any depth, sorted within each class.

    A class without a folder has no images; folders whose names differ only in Unicode form are one class. Prints a line
    of progress every SAY_EVERY_S seconds. inside: look_in(folder), if it is known. whole: as in list_folder.
    """
    paths: list[str] = []
    counts: list[int] = []
    last_s = time.monotonic()
    stored: dict[str, list[str]] = {}
    if inside is None:
        inside = look_in(folder) if folder.is_dir() else ClassFolders([], Counter())
    left_out = inside.beside.copy()
    for name in inside.names:
        stored.setdefault(one_form(name), []).append(name)

    def list_class(names: list[str]) -> list[tuple[str, list[str], Counter[str]]]:
        return [(name, *list_folder(folder / name, whole=whole)) for name in names]

    for found in map_concurrently(list_class, [stored.get(one_form(name), []) for name in classes]):
        paths += [f"{name}/{image}" for name, images, _ in found for image in images]
        counts.append(sum(len(images) for _, images, _ in found))
        for _, _, more in found:
            left_out += more
        if (now := time.monotonic()) - last_s >= SAY_EVERY_S:
            last_s = now
            print_message(
                f"Listing {folder}: {len(paths):,} images in {len(counts):,} of {len(classes):,} classes so far."
            )
    targets = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
    images = FileImages(folder, Names.of(paths), targets, reading)
    images.left_out = left_out
    return images
