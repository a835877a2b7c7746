"""Hold the features of a collection of photographs, and the file in which `python -m imagenet_ddp.features` stores
them."""

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.section import to_plain
from imagenet_ddp.curation.array_file import read_arrays
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.files import atomic_path, describe_path
from imagenet_ddp.system.packages import missing_package
from imagenet_ddp.system.text import printable

FOLDER = Path("runs/features")  # of all passes started in this folder
FILE = "features.npz"
CHECK = "check.json"  # which a check leaves beside the features: its folder, its net, and the accuracy to expect
OF_NET = ("model.library", "model.name", "model.weights", "data.image_size")  # options that it names of its net
_AGAIN = "Hint: remove it, and run python -m imagenet_ddp.features again."
_MOST_TEXT = 2**30  # bytes of all names in a file
# Options of which a pass has a file of its own; what else matters is in Features.digest
_OF_PASS = (
    ("model", ("library", "name", "target", "args", "weights")),
    ("data", ("name", "target", "args", "root", "images_dir", "train_dir", "val_dir")),  # split in any way
)


@dataclass(frozen=True)
class Features:
    """What the last layer of a net receives for each image that could be read: first the training images, then the
    validation images, each in the order of its split.

    vectors: float32 (N, D), finite. targets: int64 (N,), position in classes. is_val: bool (N,). index: int64 (N,),
    position in its split. stamps: uint64 (N,), by which an unchanged image is recognised. classes, labels: as in
    Source. unreadable: (path, reason) of the other images. net: what the net is called. digest: of its weights, the
    preprocessing and the precision.
    """

    vectors: np.ndarray
    targets: np.ndarray
    is_val: np.ndarray
    index: np.ndarray
    stamps: np.ndarray
    paths: list[str]
    classes: list[str]
    labels: list[str]
    unreadable: list[tuple[str, str]]
    net: str
    digest: str

    def __len__(self) -> int:
        return len(self.vectors)

    @classmethod
    def bare(cls, vectors: np.ndarray, stamps: np.ndarray, digest: str) -> "Features":
        """Return the features of images of which only the stamps are known, as a part of a pass stores them."""
        zeros = np.zeros(len(vectors), np.int64)
        paths = [""] * len(vectors)
        return cls(vectors, zeros, zeros.astype(bool), zeros, stamps, paths, [""], [""], [], "", digest)

    def is_of(self, digest: str, width: int) -> bool:
        """Return whether these are the features of a net, as far as a file of anyone tells. width: their number."""
        return self.digest == digest and self.vectors.shape[1] == width

    def place(self, row: int) -> tuple[str, int]:
        """Return the split of an image, train or val, and its position in it."""
        return "val" if self.is_val[row] else "train", int(self.index[row])

    def rows(self, chosen: np.ndarray) -> "Features":
        """Return the features of some images. chosen: bool (N,), or positions."""
        positions = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        arrays = {name: getattr(self, name)[positions] for name in _ARRAYS}
        return replace(self, **arrays, paths=[self.paths[position] for position in positions.tolist()])


_ARRAYS = {  # name -> type and number of dimensions
    "vectors": (np.float32, 2), "targets": (np.int64, 1), "is_val": (np.bool_, 1), "index": (np.int64, 1),
    "stamps": (np.uint64, 1),
}  # fmt: skip


def pass_name(config: CommonConfig) -> str:
    """Return the name of the folder in FOLDER of the pass with these options: a name for people, and a digest of the
    options that choose the net and the images."""
    plain, checkpoint = to_plain(config), getattr(config, "checkpoint", None)
    chosen: dict[str, Any] = {f"{group}.{key}": plain[group].get(key) for group, keys in _OF_PASS for key in keys}
    for key in ("data.root", "model.weights"):
        if chosen[key] and (path := Path(chosen[key])).exists():
            chosen[key] = str(path.resolve())
    if checkpoint:
        chosen = {key: value for key, value in chosen.items() if key.startswith("data.")}
        chosen["checkpoint"] = str(Path(checkpoint).resolve())
    digest = hashlib.sha256(json.dumps(chosen, sort_keys=True, default=str).encode()).hexdigest()[:8]
    return f"{config.name}_{digest}"


def find_pass(paths: Collection[str], start: Path, beside: str = FILE) -> Path | None:
    """Return the folder of the last pass over these images, of those that were started in the folder `start` and have
    a file of the name `beside`; None if there is none. paths: as in the features, or absolute."""
    wanted = {os.path.abspath(start / path) for path in paths}  # noqa: PTH100 (resolves no links)
    try:
        files = [(file.stat().st_mtime_ns, file) for file in (start / FOLDER).glob(f"*/{FILE}")
                 if file.is_file() and current(file.parent, beside)]  # fmt: skip
    except (OSError, ValueError):  # no path, but any text of a stranger's evaluation
        return None
    for _, file in sorted(files, reverse=True):
        try:
            seen = _texts(json.loads(read_arrays(file, ("texts",))["texts"].tobytes()))["paths"]
        except Exception:  # not a file of features, or one that another process is writing
            continue
        if wanted <= {os.path.abspath(start / path) for path in seen}:  # noqa: PTH100
            return file.parent
    return None


def current(folder: Path, name: str) -> Path | None:
    """Return the file that a check has left in the folder of its pass; None if there is none, or the pass is newer."""
    file, features = folder / name, folder / FILE
    return file if file.is_file() and file.stat().st_mtime_ns >= features.stat().st_mtime_ns else None


def write_features(path: Path, features: Features) -> None:
    """Write the file. Raises OSError."""
    texts: dict[str, Any] = {
        each.name: getattr(features, each.name) for each in fields(Features) if each.name not in _ARRAYS
    }
    encoded = json.dumps(texts).encode()  # names that are not valid UTF-8 become escapes
    arrays = {name: getattr(features, name) for name in _ARRAYS}
    with atomic_path(path) as draft, draft.open("wb") as file:
        np.savez(file, **arrays, texts=np.frombuffer(encoded, np.uint8))


def write_parquet(path: Path, features: Features) -> None:
    """Write a table for other programs: path, label, split and vector of each image. Raises ConfigError without the
    package pyarrow, OSError."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(missing_package(str(path), "pyarrow")) from error
    columns: dict[str, Any] = {
        "path": [printable(each) for each in features.paths],
        "label": [printable(features.classes[target]) for target in features.targets.tolist()],
        "split": [features.place(row)[0] for row in range(len(features))],
        "vector": list(features.vectors),
    }
    with atomic_path(path) as draft:
        pyarrow.parquet.write_table(pyarrow.table(columns), draft)


def read_features(path: Path) -> Features:
    """Read the file, which may come from anyone: it holds numbers and text only. Raises ConfigError if it is not one
    that write_features wrote, or if it holds NaN or inf."""
    try:
        stored = read_arrays(path, (*_ARRAYS, "texts"))
        arrays = {name: _array(stored, name, *kind) for name, kind in _ARRAYS.items()}
        encoded = _array(stored, "texts", np.uint8, 1)
        if len(encoded) > _MOST_TEXT:
            raise ValueError("its names are too long")
        found = Features(**arrays, **_texts(json.loads(encoded.tobytes())))
        _require_consistent(found)
    except Exception as error:  # zip, memory, key or value errors, depending on the contents of the file
        raise ConfigError(
            f"{describe_path(path)} must be a file of features, but is not ({type(error).__name__}: "
            f"{printable(str(error))}). {_AGAIN}"
        ) from error
    if not np.isfinite(found.vectors).all():
        raise ConfigError(f"{describe_path(path)} must hold finite features, but holds NaN or inf. {_AGAIN}")
    return found


def _array(file: Mapping[str, np.ndarray], name: str, kind: Any, dimensions: int) -> np.ndarray:
    array = file[name]
    if array.dtype != kind or array.ndim != dimensions:
        raise ValueError(f"{name} is {array.dtype} {array.shape}")
    return array


def _texts(content: Any) -> dict[str, Any]:
    found = {key: [*map(str, content[key])] for key in ("paths", "classes", "labels")}
    unreadable = [(str(path), str(reason)) for path, reason in content["unreadable"]]
    return {**found, "unreadable": unreadable, "net": str(content["net"]), "digest": str(content["digest"])}


def _require_consistent(found: Features) -> None:
    number = len(found.paths)
    if any(len(getattr(found, name)) != number for name in _ARRAYS) or len(found.labels) != len(found.classes):
        raise ValueError("its columns have different lengths")
    if number and not 0 <= found.targets.min() <= found.targets.max() < len(found.classes):
        raise ValueError("it has labels outside its classes")
