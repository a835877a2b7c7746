"""Make small copies of ImageNet's archives: a tar of tars, a flat tar and a devkit, with random images."""

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

TRAIN, VAL, DEVKIT = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
NUM_TRAIN = {"n01440764": 7, "n02119789": 5, "n03000684": 6, "n15075141": 1}  # WordNet id -> training images
CLASSES = {1: "n02119789", 2: "n15075141", 3: "n01440764", 4: "n03000684"}  # ILSVRC2012_ID -> WordNet id, not sorted
VAL_IDS = [3, 1, 1, 4, 2, 3, 4, 2, 1]  # class of ILSVRC2012_val_00000001 and so on


@dataclass(frozen=True)
class FakeImageNet:
    folder: Path
    md5: dict[str, str]  # train, val, devkit -> MD5
    files: dict[str, bytes]  # path below out -> content


def make(folder: Path, *, num_bytes: int = 3_000) -> FakeImageNet:
    """Write the three archives to folder. num_bytes: the approximate size of an image."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    files, class_tars = {}, {}
    for name, number in NUM_TRAIN.items():
        images = {f"{name}_{7 * k + 1}.JPEG": generator.bytes(num_bytes + 100 * k) for k in range(number)}
        files |= {f"train/{name}/{image}": content for image, content in images.items()}
        class_tars[f"{name}.tar"] = tar(images)
    val = {f"ILSVRC2012_val_{k:08}.JPEG": generator.bytes(num_bytes + 10 * k) for k in range(1, len(VAL_IDS) + 1)}
    for (name, content), ilsvrc_id in zip(val.items(), VAL_IDS, strict=True):
        files[f"val/{CLASSES[ilsvrc_id]}/{name}"] = content
    contents = {TRAIN: tar(class_tars), VAL: tar(val), DEVKIT: devkit("".join(f"{number}\n" for number in VAL_IDS))}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    sums = [hashlib.md5(content, usedforsecurity=False).hexdigest() for content in contents.values()]
    return FakeImageNet(folder, dict(zip(("train", "val", "devkit"), sums, strict=True)), files)


def tar(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def devkit(ground_truth: str) -> bytes:
    top = "ILSVRC2012_devkit_t12"
    return gzip.compress(tar({
        f"{top}/readme.txt": b"made for a test",
        f"{top}/data/ILSVRC2012_validation_ground_truth.txt": ground_truth.encode(),
    }), mtime=0)  # fmt: skip


def files_below(folder: Path) -> dict[str, bytes]:
    """Return {path relative to folder: content} of all files except hidden ones."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
