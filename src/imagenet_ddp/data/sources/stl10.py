"""Find STL-10's official binary files, or download and unpack them once per machine with torchvision, and read their
images through a memory map.

train_X.bin and test_X.bin contain one record of 27,648 bytes per image: three channels (red, green, blue) of 96 by 96
uint8, each stored column by column. train_y.bin and test_y.bin contain one byte per image, the class from 1 to 10.
Line k of fold_indices.txt lists the training images of fold k; lines and images are counted from 0. unlabeled_X.bin is
not needed.
Source: https://cs.stanford.edu/~acoates/stl10/
"""

import http.client
import shutil
import socket
import urllib.error
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from imagenet_ddp.config.validators import integer
from imagenet_ddp.data.sources.base import Images, Pending, Source, SourceType
from imagenet_ddp.data.sources.download import Archive, lock_or_wait, size_of, validate_size, verify
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.text import MIB, first_line

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "stl10_binary"
SHAPE = (3, 96, 96)
RECORD_BYTES = 3 * 96 * 96
OFFICIAL_IMAGES = {"train": 5000, "test": 8000}
NEEDED = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt", "fold_indices.txt")
NUM_UNLABELED = 100_000  # unpacked with the others, then deleted
UNPACKED_BYTES = (sum(OFFICIAL_IMAGES.values()) + NUM_UNLABELED) * RECORD_BYTES
READ_S = 30.0  # longest wait for a response, and for the next bytes
OFFICIAL = Archive(
    name="stl10_binary.tar.gz",
    url="http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    num_bytes=2640397119,
    md5="91f7769df0f17e558f3565bffb0c7dfb",
)


class Stl10(SourceType):
    default_root = "data"

    def check(self, data: Mapping[str, Any], environ: Mapping[str, str], verb: str) -> list[str]:
        fold = data["fold"] if integer(0, 9).accepts(data["fold"]) else None
        return validate(self._root(data), fold, data["download"])

    def recognise(self, root: str, folder: Path, otherwise: str) -> list[str]:
        is_there = any((folder / mark).exists() for mark in (FOLDER, OFFICIAL.name))
        return ["data=stl10", f"data.root={root}"] if is_there else []

    def open(self, data: Mapping[str, Any], seed: int, environ: Mapping[str, str], verb: str) -> Source:
        folder = prepare(self._root(data), data["download"])
        train = None if verb == "evaluate" else Stl10Images(folder, "train", data["fold"])
        return Source(class_names(folder), train, Stl10Images(folder, "test", None), notes=notes(folder))

    def pending(self, data: Mapping[str, Any], seed: int, environ: Mapping[str, str]) -> Pending | None:
        root = self._root(data)
        if (root / FOLDER).is_dir():
            return None
        what = "unpacked" if (root / OFFICIAL.name).exists() else "downloaded (2.64 GB) and unpacked"
        return Pending(f"STL-10 will be {what} into {root / FOLDER}", 10)

    def _root(self, data: Mapping[str, Any]) -> Path:
        return Path(data["root"] or "data")


class Stl10Images(Images):
    """One split of STL-10, or one fold of it. Only the path and the labels are pickled; each process maps the file
    itself."""

    def __init__(self, folder: Path, split: Literal["train", "test"], fold: int | None):
        """folder: contains the binary files. fold: 0 to 9, for the training images only; None: all images. Raises
        ConfigError if sizes or labels are wrong."""
        self.targets, self._records = read_split(folder, split, fold)
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


def validate(root: Path, fold: int | None, download: bool, archive: Archive = OFFICIAL) -> list[str]:
    """Return a message for each mistake that would prevent `prepare`. Only names and sizes are checked: no checksum is
    computed, no network is used and nothing is written."""
    found = []
    folder, packed = root / FOLDER, root / archive.name
    if root.exists() and not root.is_dir():
        found.append(f"data.root must be a folder, but {root} is a file. Hint: set data.root=FOLDER.")
    elif folder.exists():
        found += _validate_folder(folder, fold)
    elif (root / "train_X.bin").exists():
        found.append(
            f"data.root must be the folder that contains {FOLDER}, but {root} contains the files of {FOLDER} itself. "
            + (f"Hint: set data.root={root.parent}." if root.name == FOLDER else f"Hint: move them into {folder}.")
        )
    elif packed.exists():
        found += validate_size(packed, archive)
    elif not download:
        found.append(
            f"data.root must contain the folder {FOLDER} or {archive.name}, but {root} contains neither, and "
            f"data.download is false. Hint: put {archive.name} into {root}, or set data.download=true."
        )
    return found


def _validate_folder(folder: Path, fold: int | None) -> list[str]:
    sizes = {name: size_of(folder / name) for name in NEEDED}
    wrong = [name for name, size in sizes.items() if not size and (name != "fold_indices.txt" or fold is not None)]
    for split in OFFICIAL_IMAGES:
        if sizes[f"{split}_X.bin"] != sizes[f"{split}_y.bin"] * RECORD_BYTES:
            wrong += [f"{split}_X.bin", f"{split}_y.bin"]
    if wrong:
        return [
            f"{folder} must contain STL-10's files, with {RECORD_BYTES} bytes of images per byte of labels, but these "
            f"files are missing or have the wrong size: {', '.join(dict.fromkeys(wrong))}. Hint: delete {folder}, then "
            "run this command again to unpack or download the files."
        ]
    if fold is None:
        return []
    try:
        _fold(folder, fold, sizes["train_y.bin"])
    except ConfigError as error:
        return list(error.mistakes)
    return []


def notes(folder: Path) -> list[str]:
    """Return a sentence for the log about each split whose number of images differs from the official one."""
    sizes = {split: (folder / f"{split}_y.bin").stat().st_size for split in OFFICIAL_IMAGES}
    return [
        f"{folder} has {sizes[split]} {split} images; the official STL-10 has {official}."
        for split, official in OFFICIAL_IMAGES.items()
        if sizes[split] != official
    ]


def read_split(folder: Path, split: Literal["train", "test"], fold: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes of a split's images, counted from 0, and the positions of the images in the split's file, both
    int64 (N,).

    fold: 0 to 9, used only for the training images; None: all images. Raises ConfigError if sizes or labels are wrong.
    """
    fold = fold if split == "train" else None
    if found := _validate_folder(folder, fold):
        raise ConfigError(found)
    labels = np.fromfile(folder / f"{split}_y.bin", dtype=np.uint8)
    num_classes = len(class_names(folder))
    if (wrong := (labels < 1) | (labels > num_classes)).any():
        first = int(wrong.argmax())
        raise ConfigError(
            f"{folder / f'{split}_y.bin'} must contain labels from 1 to {num_classes} (class_names.txt), got "
            f"{labels[first]} for image {first}. Hint: delete {folder}, then run this command again to unpack or "
            "download the files."
        )
    records = np.arange(len(labels)) if fold is None else _fold(folder, fold, len(labels))
    return labels[records].astype(np.int64) - 1, records


def class_names(folder: Path) -> list[str]:
    return (folder / "class_names.txt").read_text(encoding="utf-8").split()


def _fold(folder: Path, fold: int, num_images: int) -> np.ndarray:
    lines = (folder / "fold_indices.txt").read_text(encoding="utf-8").splitlines()
    try:
        indices = np.array(lines[fold].split(), dtype=np.int64)
    except (IndexError, ValueError):
        indices = np.array([], dtype=np.int64)
    if not len(indices) or indices.min() < 0 or indices.max() >= num_images:
        raise ConfigError(
            f"line {fold + 1} of {folder / 'fold_indices.txt'} (data.fold={fold}) must contain image indices from 0 to "
            f"{num_images - 1}, but does not. Hint: set data.fold=null to train on all images."
        )
    return indices


def prepare(root: Path, download: bool, archive: Archive = OFFICIAL) -> Path:
    """Return the folder with the binary files. If it is missing, unpack it from the archive, which is downloaded first
    if necessary.

    Several processes of one machine may call this function at once: one does the work, and the others wait. Raises
    ConfigError.
    """
    folder, packed, part = root / FOLDER, root / archive.name, archive.part(root)
    if found := validate(root, None, download, archive):
        raise ConfigError(found)
    if folder.is_dir():
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with lock_or_wait(root / f"{FOLDER}.lock", growing=part):
            if folder.is_dir():  # made by another process while this one waited
                return folder
            to_fetch = 0 if packed.exists() else archive.num_bytes
            fetched = f"{to_fetch / 1e9:.2f} GB to download, " if to_fetch else ""
            print_message(f"Preparing STL-10 in {folder.absolute()}: {fetched}{UNPACKED_BYTES / 1e9:.2f} GB to unpack.")
            need = UNPACKED_BYTES + to_fetch
            if (free := shutil.disk_usage(root).free) < need:
                raise OSError(f"{need // MIB} MiB must still be written, but only {free // MIB} MiB are free")
            if to_fetch:
                _download(part, archive)
                part.rename(packed)
            else:
                verify(packed, archive)
            _unpack(packed, folder)
            print_message(f"STL-10 is ready in {folder}. You may delete {packed}.")
    except OSError as error:
        raise ConfigError(
            f"data.root must be a folder that can hold STL-10, but {root} cannot: {error}. "
            "Hint: set data.root=FOLDER to a writable folder with enough free space."
        ) from error
    return folder


def _download(part: Path, archive: Archive) -> None:
    from torchvision.datasets.utils import download_url

    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(READ_S)
    try:
        download_url(archive.url, part.parent, part.name, archive.md5)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, RuntimeError) as error:
        part.unlink(missing_ok=True)
        raise ConfigError(
            f"{archive.name} cannot be downloaded from {archive.url}: {first_line(error).rstrip('.')}. "
            f"Hint: put {archive.name} into {part.parent}, or set data.root=FOLDER to the folder that contains it."
        ) from error
    finally:
        socket.setdefaulttimeout(timeout)


def _unpack(packed: Path, folder: Path) -> None:
    from torchvision.datasets.utils import extract_archive

    print_message(f"Unpacking {packed}.")
    draft = folder.with_name(f"{folder.name}.unpacking")  # a fixed name, so that leftovers of killed runs are removed
    shutil.rmtree(draft, ignore_errors=True)
    try:
        extract_archive(packed, draft)
        (draft / FOLDER / "unlabeled_X.bin").unlink(missing_ok=True)
        if found := _validate_folder(draft / FOLDER, 0):
            raise ConfigError(found)
        (draft / FOLDER).rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
