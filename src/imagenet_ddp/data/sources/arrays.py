"""Read the images of an HDF5 or NumPy file (data=arrays), such as those of MedMNIST."""

import hashlib
import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_ddp.data.decoding.pixel_conversion import MAX_PIXELS
from imagenet_ddp.data.sources.base import Images, Source
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.system.packages import missing_package
from imagenet_ddp.system.text import count_noun, first_line, shorten_list

if TYPE_CHECKING:
    from torch import Tensor

HDF5_SUFFIXES = (".h5", ".hdf5")
# What numpy and h5py raise, depending on the content of a file.
_DAMAGED = (AttributeError, EOFError, KeyError, MemoryError, OSError, RuntimeError, TypeError, ValueError,
            zipfile.BadZipFile, zlib.error)  # fmt: skip


def open_arrays(
    root: str = "",
    train_images: str = "train_images",
    train_labels: str = "train_labels",
    val_images: str = "val_images",
    val_labels: str = "val_labels",
) -> Source:
    """Open a file with these four arrays. root: path of a .npz, .h5 or .hdf5 file. Images are uint8 (N, H, W),
    (N, H, W, 1) or (N, H, W, 3), labels are integers (N,) or (N, 1). Raises ConfigError for any other content."""
    file, names = Path(root), (train_images, train_labels, val_images, val_labels)
    try:
        return _read(file, names)
    except _DAMAGED as error:
        # pickled objects, which are not loaded, links that lead nowhere, sizes that cannot be
        what = f"{file} must hold the arrays {', '.join(names)}, but reading them failed: {first_line(error)}"
        raise ConfigError(Mistake(what, ("data.root",), (setting("data.root=FILE.npz"),))) from error


_ARGS = ("train_images", "train_labels", "val_images", "val_labels")


def _read(file: Path, names: tuple[str, str, str, str]) -> Source:
    with _open(file) as arrays:
        _require_arrays(file, arrays, names)
        pixels = [arrays[name] for name in names[::2]]
        labels = [np.asarray(arrays[name]).reshape(len(arrays[name]), -1) for name in names[1::2]]
        # the values mean something only where the shapes are right
        if wrong := _wrong_shapes(file, names, pixels, labels) or _wrong_values(file, names, labels):
            raise ConfigError(wrong)
        classes = np.unique(np.concatenate(labels))
        train, val = (
            ArrayImages(file, name, array, np.searchsorted(classes, values[:, 0]))
            for name, array, values in zip(names[::2], pixels, labels, strict=True)
        )
    digest = hashlib.sha256(b"".join(images.targets.tobytes() for images in (train, val))).hexdigest()[:8]
    return Source([str(value) for value in classes], train, val, digest=digest)


def _require_arrays(file: Path, arrays: Any, names: tuple[str, str, str, str]) -> None:
    """Raise ConfigError unless an open file holds all arrays itself."""
    if elsewhere := [name for name in names if file.suffix in HDF5_SUFFIXES and _is_elsewhere(arrays, name)]:
        raise ConfigError(
            f"{file} must contain its arrays itself, but {', '.join(elsewhere)} may be in another file (a link, "
            "external or virtual storage). Hint: copy the arrays into one file with h5py."
        )
    if missing := [name for name in names if name not in arrays]:
        what = (
            f"{file} must contain the arrays {', '.join(names)}, but has no {', '.join(missing)}: its arrays are "
            f"{shorten_list(list(arrays))}"
        )
        options = [f"+data.args.{each}=NAME" for each, name in zip(_ARGS, names, strict=True) if name in missing]
        way = setting(*options, aim="for arrays of other names")
        raise ConfigError(Mistake(what, ("data.root", "data.args"), (way,)))


def _wrong_shapes(file: Path, names: Sequence[str], pixels: Sequence[Any], labels: Sequence[np.ndarray]) -> list[str]:
    """Return the mistakes in the types and shapes of the arrays."""
    wrong = [
        f"{file}: {name} must be uint8 (images, height, width, 1 or 3), of 1 to {MAX_PIXELS:,} pixels, got "
        f"{array.dtype} {tuple(array.shape)}. Hint: convert it with numpy."
        for name, array in zip(names[::2], pixels, strict=True)
        if array.dtype != np.uint8
        or len(array.shape) not in (3, 4)
        or tuple(array.shape[3:]) not in ((), (1,), (3,))
        or not 0 < math.prod(array.shape[1:3]) <= MAX_PIXELS
    ]
    wrong += [
        f"{file}: {name} must have one integer for each of the {len(images)} images, got {array.dtype} "
        f"{array.shape}. Hint: convert it with numpy."
        for name, array, images in zip(names[1::2], labels, pixels, strict=True)
        if array.shape != (len(images), 1) or array.dtype.kind not in "iu"
    ]
    return wrong


def _wrong_values(file: Path, names: Sequence[str], labels: Sequence[np.ndarray]) -> list[str]:
    """Return the mistakes in the values of the labels, integers (N, 1) of train and val."""
    wrong: list[str] = []
    of_train, of_val = (values[:, 0] for values in labels)
    for name, values in ((names[1], of_train), (names[3], of_val)):
        if len(negative := np.flatnonzero(values < 0)):
            wrong.append(
                f"{file}: {name} must be 0 or more, but {count_noun(len(negative), 'image')} of {len(values):,} "
                f"{'has' if len(negative) == 1 else 'have'} a negative label, the first of them image "
                f"{negative[0]} ({values[negative[0]]}). Hint: leave images without a class out of the file."
            )
    if len(foreign := np.flatnonzero(~np.isin(of_val, of_train))):
        wrong.append(
            f"{file}: {names[3]} must have only labels of {names[1]}, but {count_noun(len(foreign), 'image')} of "
            f"{len(of_val):,} {'has' if len(foreign) == 1 else 'have'} another, the first of them image "
            f"{foreign[0]} ({of_val[foreign[0]]}). Hint: correct the labels."
        )
    return wrong


def _is_elsewhere(file: Any, name: str) -> bool:
    """Return whether an array of an HDF5 file may be in another file, which the author of the file has chosen: what is
    in it would get into what a run writes, and a pipe would be waited for."""
    import h5py

    node = file
    for part in name.encode().strip(b"/").split(b"/"):
        if not isinstance(node, h5py.Group) or not node.id.links.exists(part):
            return False  # it is missing
        if node.id.links.get_info(part).type != h5py.h5l.TYPE_HARD:  # pyright: ignore[reportAttributeAccessIssue]
            return True
        node = node[part]
    return isinstance(node, h5py.Dataset) and (node.is_virtual or bool(node.external))


def _open(file: Path) -> Any:
    """Return an open file, which maps the names of its arrays to them."""
    try:
        if file.exists() and not file.is_file():  # reading a pipe would wait for ever
            raise OSError("it is not a regular file")
        if file.suffix not in HDF5_SUFFIXES:
            return np.load(file)
        if missing := missing_package(f"data.root={file}", "h5py"):
            raise ConfigError(missing)
        import h5py

        return h5py.File(file, "r")
    except (OSError, ValueError) as error:
        what = f"data.root must be a .npz, .h5 or .hdf5 file, but reading {file} failed: {error}"
        raise ConfigError(Mistake(what, ("data.root",), (setting("data.root=FILE.npz"),))) from error


class ArrayImages(Images):
    """One split. Those of a .npz file are in memory; of an HDF5 file, each process reads one image at a time."""

    def __init__(self, file: Path, name: str, array: Any, targets: np.ndarray):
        self.location, self.targets = str(file), targets.astype(np.int64)
        self._file, self._name = file, name
        self._array = array if isinstance(array, np.ndarray) else None  # an open HDF5 file must not be forked

    def path(self, index: int) -> str:
        return f"{self._file.name}:{self._name}[{index}]"

    def read(self, index: int) -> "Tensor":
        import torch

        if self._array is None:
            self._array = _open(self._file)[self._name]
        pixels = torch.from_numpy(self._array[index])
        return pixels.reshape(*pixels.shape[:2], -1).permute(2, 0, 1).expand(3, -1, -1).contiguous()
