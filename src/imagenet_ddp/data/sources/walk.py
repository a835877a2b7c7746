"""Find the image files below a folder: which names count, which folders are skipped, and what is left out.

Does not import torch, because a command looks at its data before.
"""

import errno
import glob
import itertools
import os
import re
import shlex
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from imagenet_ddp.config.schema.data import TABLE_SUFFIXES
from imagenet_ddp.data.decoding.heic import HEIC_EXTENSIONS, install_heic, reads_heic
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix, Mistake, did_you_mean, setting, stands_for
from imagenet_ddp.system.files import beside, describe_path
from imagenet_ddp.system.text import count_noun, printable

NUM_THREADS = 8  # that wait for a disk at the same time
MOST_LOOSE = 1000  # names kept of images outside the class folders

T = TypeVar("T")
R = TypeVar("R")

# Extensions of image files: torchvision's list, three more formats that Pillow reads, and the other names of JPEGs
_JPEG = (".jpg", ".jpeg", ".jfif", ".jpe", ".jif", ".jfi", ".pjpeg", ".pjp")
IMAGE_EXTENSIONS = frozenset(
    [*_JPEG, ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".avif", ".jp2"]
    + [*HEIC_EXTENSIONS] * reads_heic()
)
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
    files by reason, as in FileImages.left_out. loose: names of the images among them, sorted, at most MOST_LOOSE."""

    names: list[str]
    beside: Counter[str]
    loose: list[str]


def look_in(folder: Path) -> ClassFolders:
    names, beside, loose = list[str](), Counter[str](), list[str]()
    for kind, name in _entries(str(folder)):
        is_link = kind == "linked"
        if kind == "folder" or (is_link and not folder.resolve().is_relative_to((folder / name).resolve())):
            names.append(name)
        elif not is_link:
            beside["beside" if kind == "image" else kind] += 1
            if kind == "image" and len(loose) < MOST_LOOSE:
                loose.append(name)
    return ClassFolders(sorted(names), beside, sorted(loose))


def class_folders(folder: Path) -> list[str]:
    """Return the names of look_in."""
    return look_in(folder).names


def has_images(folder: Path) -> bool:
    """Return whether images lie in the folder itself. False for a folder that cannot be read."""
    return has_more_images(folder, 0)


def has_more_images(folder: Path, number: int) -> bool:
    """Return whether more images than `number` lie in the folder itself. False for a folder that cannot be read."""
    try:
        images = (path for kind, path in _entries(str(folder)) if kind == "image")
        return next(itertools.islice(images, number, None), None) is not None
    except OSError:
        return False


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
    """Yield (kind, path) of everything below a folder except folders. One that another program removes meanwhile has
    nothing."""
    todo = [""]
    while todo:
        prefix = todo.pop()
        try:
            for kind, name in _entries(f"{folder}/{prefix}"):
                if kind == "folder":
                    todo.append(f"{prefix}{name}/")
                else:
                    yield kind, prefix + name
        except FileNotFoundError:
            if not prefix:
                raise


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
    """What messages say about HEIC photographs that are not read because a package is missing. words: after the number
    of images. hint: what to do before the rest of the hint. Both are "" if there are none."""

    words: str = ""
    hint: str = ""

    @classmethod
    def of(cls, left_out: Counter[str]) -> "Heic":
        if not (number := sum(left_out[kind] for kind in HEIC_EXTENSIONS)):
            return cls("", "")
        # phones write .HEIC, and the files are in class folders
        command = "find FOLDER -iname '*.hei[cf]' -exec magick mogrify -format jpg {} +"
        hint = f"run `{install_heic()}` to read HEIC files, or convert them to JPEG (such as by `{command}`), then "
        return cls(f" (but {count_noun(number, 'HEIC file')}, a format that is not read)", hint)


def find_images(pattern: str) -> list[str]:
    """Return the paths of all images below a folder, of a single file, or of all files that match a pattern. Raises
    ConfigError if there are none."""
    heic = Heic()
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


_OF_TABLES = (*TABLE_SUFFIXES, ".xlsx", ".json", ".jsonl")
ARCHIVE = re.compile(r"\.(zip|tar(\.\w+)?|tgz|tbz2?|txz|7z|rar)$", re.IGNORECASE)


def unpacked(path: Path, key: str) -> Fix | None:
    """Return the fix of a zip or tar file that was typed in place of a folder; None for another path."""
    if not ARCHIVE.search(path.name):
        return None
    is_imagenet = path.name.startswith("ILSVRC2012_")  # with archives in it
    folder = path.with_name("imagenet" if is_imagenet else ARCHIVE.sub("", path.name))
    if folder.is_dir():  # it is unpacked already
        return Fix((f"{key}={folder}",), is_meant=True)
    file, new = shlex.quote(str(path)), shlex.quote(str(folder))
    run = f"unzip {file} -d {new}" if path.suffix.lower() == ".zip" else f"mkdir {new} && tar -xf {file} -C {new}"
    if path.suffix.lower() in (".7z", ".rar"):
        run = f"7z x {file} -o{new}"
    if is_imagenet:
        run = f"python -m imagenet_ddp.prepare prepare=imagenet archive_dir={shlex.quote(str(path.parent))} out={new}"
    return Fix((f"{key}={folder}",), said=f"run `{run}`, then set {shlex.quote(f'{key}={folder}')}", run=run)


def validate_images(pattern: str) -> list[Mistake]:
    """Return a mistake if there is nothing that find_images could find. Searches only until the first match."""
    if Path(pattern).is_file() and (fix := unpacked(Path(pattern), "images")):
        return [Mistake(f"images must be image files, but {pattern} is an archive", ("images",), (fix,))]
    if Path(pattern).is_file() and Path(pattern).suffix.lower() in _OF_TABLES:
        fix = setting("images=FOLDER", aim="to the folder of the images")
        return [
            Mistake(f"images must be image files, but {pattern} is a table, which is not read", ("images",), (fix,))
        ]
    if pattern and (Path(pattern).exists() or any(glob.iglob(pattern, recursive=True))):
        return []
    return [_no_images(pattern, Heic())]


def _no_images(pattern: str, heic: Heic) -> Mistake:
    if "://" in pattern:
        what = f"images must be files of this machine, but {pattern} is an address"
        return Mistake(what, ("images",), hint="download it, then set images to the file")
    is_missing = not (glob.has_magic(pattern) or Path(pattern).exists())
    where, end = describe_path(Path(pattern)), "does not exist" if is_missing else f"matches none{heic.words}"
    said = f"{stands_for(pattern)}{heic.hint}set images to a file or a folder, or to a pattern such as 'FOLDER/*.jpg'"
    fix = Fix(("images=FOLDER/*.jpg",), said=said)
    if is_missing and (near := beside(Path(pattern), Path.exists)):
        fix = did_you_mean(f"images={near}")
    deeper = str(Path(pattern).parent / "**" / Path(pattern).name)
    if not is_missing and any(map(Path.is_file, itertools.islice(map(Path, glob.iglob(deeper, recursive=True)), 1))):
        fix = did_you_mean(f"images={deeper}")
    what, missing = f"images={pattern} must match image files, but {where} {end}", pattern if is_missing else ""
    return Mistake(what, ("images",), (fix,), missing=missing)


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


def describe_left_out(left_out: Counter[str], loose: Sequence[str] = ()) -> str:
    """Return a description of FileImages.left_out and loose, or "" if no file was left out."""
    named = {"beside": f" ({name_loose(loose, left_out['beside'])})"} if loose else {}
    parts = [f"{left_out[kind]:,} {words}{named.get(kind, '')}" for kind, words in REASONS.items() if left_out[kind]]
    number, types = other_types(left_out)
    parts += [f"{number:,} {types}"] if number else []
    were = "was" if left_out.total() == 1 else "were"
    hint = Heic.of(left_out).hint.removesuffix(", then ")
    hint = hint and f"; {hint}"
    return f"{count_noun(left_out.total(), 'file')} {were} left out: {', '.join(parts)}{hint}" if parts else ""


def other_types(left_out: Counter[str]) -> tuple[int, str]:
    """Return (the number of files of other types in FileImages.left_out, "of another type (.dcm)")."""
    others = Counter({kind or "none": number for kind, number in left_out.items() if kind not in REASONS})
    names = sorted(others, key=lambda kind: (-others[kind], kind))[:4] + (["..."] if len(others) > 4 else [])
    types = "another type" if len(others) == 1 else "other types"
    return others.total(), f"of {types} ({', '.join(names)})"


def name_loose(loose: Sequence[str], number: int) -> str:
    """Return the first names of images outside the class folders, and what to do with these. number: of all."""
    them, to = ("it", "folder of its class") if number == 1 else ("them", "folders of their classes")
    names = ", ".join([*map(printable, loose[:3]), *["..."] * (number > 3)])
    return f"{names}; to use {them}, move {them} into the {to}"
