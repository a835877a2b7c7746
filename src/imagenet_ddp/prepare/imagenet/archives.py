"""Describe ImageNet's archives as published, and compare files with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path


@dataclass(frozen=True)
class Archive:
    name: str
    md5: str
    num_bytes: int | None  # None: not known


@dataclass(frozen=True)
class Edition:
    """num_images: split -> images in its archive. classes: ILSVRC2012_ID (from 1) -> WordNet id."""

    train: Archive
    val: Archive
    devkit: Archive
    num_images: Mapping[str, int]
    classes: Mapping[int, str]


def ilsvrc2012() -> Edition:
    """Return the edition of ImageNet-1k.

    MD5: as in torchvision.datasets.imagenet (ARCHIVE_META). Bytes: as listed by the download page's users and by the
    indexes of several mirrors. Images: Russakovsky et al. 2015, arXiv:1409.0575, table 2. Ids: meta.mat of the devkit;
    tests/prepare/imagenet/test_archives.py compares them with the SHA-256 of its first 1,000.
    """
    table = resources.files("imagenet_ddp.data").joinpath("imagenet_classes.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in table.splitlines()]
    return Edition(
        train=Archive("ILSVRC2012_img_train.tar", "1d675b47d978889d74fa0da5fadfb00e", 147_897_477_120),
        val=Archive("ILSVRC2012_img_val.tar", "29b22e2961454d5413ddabcf34fc5622", 6_744_924_160),
        devkit=Archive("ILSVRC2012_devkit_t12.tar.gz", "fa75699e90414af021442c21a62c3abf", None),
        num_images={"train": 1_281_167, "val": 50_000},
        classes={int(ilsvrc_id): wordnet_id for wordnet_id, _, ilsvrc_id in rows},
    )


def validate_size(path: Path, archive: Archive) -> list[str]:
    """Return a mistake where the file cannot be the archive."""
    size = path.stat().st_size
    if archive.num_bytes is None or size == archive.num_bytes:
        return []
    why = "the download or copy is incomplete" if size < archive.num_bytes else "it is another file"
    return [
        f"{path} must be {archive.num_bytes:,} bytes, got {size:,}: {why}. Hint: download it again; for another "
        "edition, prepare.verify=false."
    ]


def describe_wrong_md5(path: Path, archive: Archive, md5: str) -> str:
    return (
        f"{path} must have MD5 {archive.md5}, got {md5}: the file is damaged. Hint: download it again; for another "
        "edition, prepare.verify=false."
    )
