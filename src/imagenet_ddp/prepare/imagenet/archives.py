"""Describe ImageNet's archives as published, and list what they contain."""

import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from imagenet_ddp.data.sources.download import Archive
from imagenet_ddp.data.sources.imagenet import NUM_IMAGES, class_table

URL = "https://image-net.org/download-images.php"
GROUND_TRUTH = "data/ILSVRC2012_validation_ground_truth.txt"


@dataclass(frozen=True)
class Edition:
    """The archives of ImageNet. num_images: split -> number of images in its archive. classes: ILSVRC2012_ID (from 1)
    -> WordNet id."""

    train: Archive
    val: Archive
    devkit: Archive
    num_images: Mapping[str, int]
    classes: Mapping[int, str]


@dataclass(frozen=True)
class ClassImages:
    """The images of one class: in a tar within the archive (train), or directly in the archive (val)."""

    name: str
    inner_tar: tarfile.TarInfo | None
    images: list[tarfile.TarInfo]


def ilsvrc2012() -> Edition:
    """Return the archives of ImageNet-1k.

    MD5 sums are those of torchvision.datasets.imagenet (ARCHIVE_META). Sizes in bytes are those reported by users of
    the download page and in the indexes of several mirrors; the devkit's size is unknown. Ids are from the devkit's
    meta.mat; tests/prepare/imagenet/test_archives.py compares them with the SHA-256 of its first 1,000 ids.
    """
    return Edition(
        train=Archive("ILSVRC2012_img_train.tar", URL, 147_897_477_120, "1d675b47d978889d74fa0da5fadfb00e"),
        val=Archive("ILSVRC2012_img_val.tar", URL, 6_744_924_160, "29b22e2961454d5413ddabcf34fc5622"),
        devkit=Archive("ILSVRC2012_devkit_t12.tar.gz", URL, 0, "fa75699e90414af021442c21a62c3abf"),
        num_images={split: num_images for split, (num_images, _, _) in NUM_IMAGES.items()},
        classes={int(ilsvrc_id): wordnet_id for wordnet_id, _, ilsvrc_id in class_table()},
    )


def train_classes(path: Path) -> list[ClassImages]:
    """Return the classes of ILSVRC2012_img_train.tar, each with its inner tar."""
    with path.open("rb") as file:
        return [ClassImages(file_name(member).removesuffix(".tar"), member, []) for member in regular_files(file)]


def val_classes(path: Path, devkit: Path, classes: Mapping[int, str]) -> list[ClassImages]:
    """Return the classes of ILSVRC2012_img_val.tar. devkit: the archive that lists the ILSVRC2012_ID of each image.
    classes: ILSVRC2012_ID -> WordNet id."""
    with tarfile.open(devkit) as tar:
        (name,) = (name for name in tar.getnames() if name.endswith(GROUND_TRUTH))
        ground_truth = tar.extractfile(name)
        assert ground_truth is not None
        ids = ground_truth.read().split()
    with path.open("rb") as file:
        members = {file_name(member): member for member in regular_files(file)}
    found: dict[str, ClassImages] = {}
    for number, ilsvrc_id in enumerate(ids, 1):
        wordnet_id = classes[int(ilsvrc_id)]
        one = found.setdefault(wordnet_id, ClassImages(wordnet_id, None, []))
        one.images.append(members[f"ILSVRC2012_val_{number:08}.JPEG"])
    return list(found.values())


def regular_files(file: IO[bytes]) -> list[tarfile.TarInfo]:
    """Return the files of a tar. Raises TarError if there are links or special files, or if a name occurs twice."""
    with tarfile.open(fileobj=file, mode="r:") as tar:
        members = [member for member in tar if not member.isdir()]
    if not all(member.isreg() for member in members):
        raise tarfile.TarError(f"{file.name} contains links or special files")
    if len({file_name(member) for member in members}) < len(members):
        raise tarfile.TarError(f"{file.name} contains a file twice")
    return members


def file_name(member: tarfile.TarInfo) -> str:
    """Return the name without folders, because an archive must not choose where its files are written."""
    return member.name.rpartition("/")[2]
