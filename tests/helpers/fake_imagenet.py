"""ImageNet's archives in small: a tar of tars, a flat tar, and a devkit with a meta.mat, of made-up images."""

import gzip
import hashlib
import io
import struct
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from imagenet_ddp.prepare.imagenet.archives import ILSVRC2012, Archive, Edition

CLASSES = {"n01440764": 7, "n02119789": 5, "n03000684": 6, "n15075141": 1}  # WordNet id -> training images
# ILSVRC2012_ID -> WordNet id: in another order than the ids, as in the real one; 5 is no class but what is above them
IDS = {1: "n02119789", 2: "n15075141", 3: "n01440764", 4: "n03000684", 5: "n00001740"}
VAL_IDS = [3, 1, 1, 4, 2, 3, 4, 2, 1]  # of ILSVRC2012_val_00000001 and so on


@dataclass(frozen=True)
class Made:
    folder: Path
    edition: Edition
    files: dict[str, bytes]  # path below out -> content


def make(folder: Path, *, num_bytes: int = 3_000) -> Made:
    """The three archives in folder, and what they must become. num_bytes: of an image, about."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    files, inner = {}, {}
    for name, number in CLASSES.items():
        images = {f"{name}_{7 * k + 1}.JPEG": generator.bytes(num_bytes + 100 * k) for k in range(number)}
        files |= {f"train/{name}/{image}": content for image, content in images.items()}
        inner[f"{name}.tar"] = packed(images)
    heap = {f"ILSVRC2012_val_{k:08}.JPEG": generator.bytes(num_bytes + 10 * k) for k in range(1, len(VAL_IDS) + 1)}
    for (name, content), number in zip(heap.items(), VAL_IDS, strict=True):
        files[f"val/{IDS[number]}/{name}"] = content
    contents = {
        ILSVRC2012.train.name: packed(inner),
        ILSVRC2012.val.name: packed(heap),
        ILSVRC2012.devkit.name: devkit(meta(), "".join(f"{number}\n" for number in VAL_IDS).encode()),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    train, val, kit = (
        Archive(name, hashlib.md5(content, usedforsecurity=False).hexdigest(), len(content))
        for name, content in contents.items()
    )
    numbers = {"train": sum(CLASSES.values()), "val": len(VAL_IDS)}
    return Made(folder, Edition(train, val, kit, numbers, len(CLASSES)), files)


def packed(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def devkit(meta_mat: bytes, truth: bytes) -> bytes:
    top = "ILSVRC2012_devkit_t12"
    return gzip.compress(packed({
        f"{top}/readme.txt": b"made for a test",
        f"{top}/data/meta.mat": meta_mat,
        f"{top}/data/ILSVRC2012_validation_ground_truth.txt": truth,
    }), mtime=0)  # fmt: skip


def below(folder: Path) -> dict[str, bytes]:
    """Path below folder -> content, of all files but the records beside the images."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


# ---- MATLAB 5.0, as MATLAB writes it: compressed, numbers in the smallest type that holds them


def meta() -> bytes:
    rows = [
        [_number(key), _text(name), _text("words"), _text("gloss"), _number(4 if key == 5 else 0),
         _number(*([1, 2, 3, 4] if key == 5 else [])), _number(0), _number(CLASSES.get(name, 0))]
        for key, name in IDS.items()
    ]  # fmt: skip
    fields = ["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height",
              "num_train_images"]  # fmt: skip
    names = b"".join(field.encode().ljust(32, b"\0") for field in fields)
    content = _element(5, struct.pack("<i", 32)) + _element(1, names) + b"".join(cell for row in rows for cell in row)
    return file_of(_matrix(2, (len(rows), 1), content, "synsets"))


def file_of(matrix: bytes) -> bytes:
    compressed = zlib.compress(matrix)
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + struct.pack("<II", 15, len(compressed)) + compressed


def _element(kind: int, content: bytes) -> bytes:
    if 0 < len(content) <= 4:
        return struct.pack("<HH", kind, len(content)) + content.ljust(4, b"\0")
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def _matrix(kind: int, shape: tuple[int, ...], content: bytes, name: str = "") -> bytes:
    head = _element(6, struct.pack("<II", kind, 0)) + _element(5, struct.pack(f"<{len(shape)}i", *shape))
    inner = head + _element(1, name.encode()) + content
    return struct.pack("<II", 14, len(inner)) + inner


def _number(*values: int) -> bytes:
    kind, form = (2, "B") if max(values, default=0) < 256 else (4, "H")
    return _matrix(6, (1, len(values)), _element(kind, struct.pack(f"<{len(values)}{form}", *values)))


def _text(text: str) -> bytes:
    return _matrix(4, (1, len(text)), _element(16, text.encode()))
