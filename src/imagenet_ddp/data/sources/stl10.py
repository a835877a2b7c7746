"""Find STL-10's official binary files, or download and unpack them once per machine with torchvision, and read their
images through a memory map.

train_X.bin and test_X.bin contain one record of 27,648 bytes per image: three channels (red, green, blue) of 96 by 96
uint8, each stored column by column. train_y.bin and test_y.bin contain one byte per image, the class from 1 to 10.
Line k of fold_indices.txt lists the training images of fold k; lines and images are counted from 0. unlabeled_X.bin is
not needed.
Source: https://cs.stanford.edu/~acoates/stl10/
"""

import shutil
import socket
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from imagenet_ddp.config.schema.data import Stl10Data
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.data.sources.base import Images, Pending, Scan, Source, SourceType
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.bounded_wait import lock_or_wait
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.text import first_line

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "stl10_binary"
SHAPE = (3, 96, 96)
RECORD_BYTES = 3 * 96 * 96
NEEDED = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt", "fold_indices.txt")
READ_S = 30.0  # longest wait for a response, and for the next bytes


@dataclass(frozen=True)
class Archive:
    name: str
    url: str
    md5: str


OFFICIAL = Archive(
    "stl10_binary.tar.gz",
    "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    "91f7769df0f17e558f3565bffb0c7dfb",
)


class Stl10(SourceType[Stl10Data]):
    default_root = "data"

    def scan(self, data: Stl10Data, seed: int, purpose: Purpose, *, whole: bool = True) -> Scan:
        mistakes, open_images = validate(_root(data), data.download), partial(_open, data, purpose)
        return Scan(data, seed, purpose, mistakes, open_images, _pending(_root(data)))

    def recognise(self, root: str, folder: Path, otherwise: str) -> list[str]:
        is_there = any((folder / mark).exists() for mark in (FOLDER, OFFICIAL.name))
        return ["data=stl10", f"data.root={root}"] if is_there else []


def _open(data: Stl10Data, purpose: Purpose) -> Source:
    folder = prepare(_root(data), data.download)
    train = Stl10Images(folder, "train", data.fold) if purpose.needs_train else None
    return Source(class_names(folder), train, Stl10Images(folder, "test", None))


def _pending(root: Path) -> Pending | None:
    if (root / FOLDER).is_dir():
        return None
    what = "unpacked" if (root / OFFICIAL.name).exists() else "downloaded (2.64 GB) and unpacked"
    return Pending(f"STL-10 will be {what} into {root / FOLDER}", 10)


def _root(data: Stl10Data) -> Path:
    return Path(data.root or "data")


class Stl10Images(Images):
    """One split of STL-10, or one fold of it. Only the path and the labels are pickled; each process maps the file
    itself."""

    def __init__(self, folder: Path, split: Literal["train", "test"], fold: int | None):
        """folder: contains the binary files. fold: 0 to 9, of the training images; None: all images. Raises ConfigError
        if files are missing."""
        if found := _validate_folder(folder):
            raise ConfigError(found)
        labels = np.fromfile(folder / f"{split}_y.bin", dtype=np.uint8)
        self._records = np.arange(len(labels))
        if fold is not None:
            self._records = np.array((folder / "fold_indices.txt").read_text().splitlines()[fold].split(), np.int64)
        self.targets = labels[self._records].astype(np.int64) - 1
        self.location, self._file = str(folder), folder / f"{split}_X.bin"
        self._pixels: np.ndarray | None = None

    def path(self, index: int) -> str:
        return f"{self._file.name}[{self._records[index]}]"

    def read(self, index: int) -> "Tensor":
        import torch

        if self._pixels is None:
            self._pixels = np.asarray(np.memmap(self._file, dtype=np.uint8, mode="r")).reshape(-1, *SHAPE)
        return torch.from_numpy(self._pixels[self._records[index]].transpose(0, 2, 1).copy())  # stored column by column

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pixels": None}


def validate(root: Path, download: bool, archive: Archive = OFFICIAL) -> list[str]:
    """Return a message for each mistake that would prevent `prepare`. Only names and sizes are checked: no checksum is
    computed, no network is used and nothing is written."""
    folder = root / FOLDER
    if folder.exists():
        return _validate_folder(folder)
    if (root / "train_X.bin").exists():
        return [f"data.root must be the folder that contains {FOLDER}, got {root}. Hint: set data.root={root.parent}."]
    if not download and not (root / archive.name).exists():
        return [
            f"data.root must contain the folder {FOLDER} or {archive.name}, but {root} contains neither, and "
            f"data.download is false. Hint: put {archive.name} into {root}, or set data.download=true."
        ]
    return []


def _validate_folder(folder: Path) -> list[str]:
    sizes = {name: path.stat().st_size if (path := folder / name).exists() else 0 for name in NEEDED}
    wrong = [name for name, size in sizes.items() if not size]
    for split in ("train", "test"):
        if sizes[f"{split}_X.bin"] != sizes[f"{split}_y.bin"] * RECORD_BYTES:
            wrong += [f"{split}_X.bin", f"{split}_y.bin"]
    if not wrong:
        return []
    return [
        f"{folder} must contain STL-10's files, with {RECORD_BYTES} bytes of images per byte of labels, but these "
        f"files are missing or have the wrong size: {', '.join(dict.fromkeys(wrong))}. Hint: delete {folder}, then "
        "run this command again to unpack or download the files."
    ]


def class_names(folder: Path) -> list[str]:
    return (folder / "class_names.txt").read_text(encoding="utf-8").split()


def prepare(root: Path, download: bool, archive: Archive = OFFICIAL) -> Path:
    """Return the folder with the binary files. If it is missing, unpack it from the archive, which torchvision
    downloads if it is missing, too, and verifies.

    Several processes of one machine may call this function at once: one does the work, and the others wait. Raises
    ConfigError.
    """
    from torchvision.datasets.utils import check_integrity, download_and_extract_archive

    folder = root / FOLDER
    if found := validate(root, download, archive):
        raise ConfigError(found)
    if folder.is_dir():
        return folder
    draft = folder.with_name(f"{folder.name}.unpacking")  # a fixed name, so that leftovers of killed runs are removed
    timeout_s = socket.getdefaulttimeout()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with lock_or_wait(root / f"{FOLDER}.lock"):
            if folder.is_dir():  # made by another process while this one waited
                return folder
            print_message(f"Preparing STL-10 in {folder.absolute()}: it needs 3.2 GB, and the archive 2.7 GB.")
            shutil.rmtree(draft, ignore_errors=True)
            if not download and not check_integrity(root / archive.name, archive.md5):
                raise RuntimeError(f"the file there does not have MD5 {archive.md5}, and data.download is false")
            socket.setdefaulttimeout(READ_S)
            download_and_extract_archive(archive.url, root, draft, archive.name, archive.md5)
            (draft / FOLDER / "unlabeled_X.bin").unlink(missing_ok=True)
            (draft / FOLDER).rename(folder)
            print_message(f"STL-10 is ready in {folder}. You may delete {root / archive.name}.")
    except (OSError, HTTPException, RuntimeError) as error:  # RuntimeError: another MD5
        raise ConfigError(
            f"{archive.name} cannot be downloaded from {archive.url} and unpacked in {root}: "
            f"{first_line(error).rstrip('.')}. Hint: put {archive.name} into {root}, or set data.root=FOLDER to a "
            "folder with it, or with enough free space."
        ) from error
    finally:
        socket.setdefaulttimeout(timeout_s)
        shutil.rmtree(draft, ignore_errors=True)
    return folder
