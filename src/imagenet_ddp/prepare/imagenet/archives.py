"""Describe ImageNet's archives as published, and compare files with them."""

import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from imagenet_ddp.errors import RunError
from imagenet_ddp.system.progress_bar import Progress

_BLOCK = 2**22  # bytes read at once
MIB = 2**20


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


def md5_mistake(path: Path, archive: Archive, md5: str) -> str:
    return (
        f"{path} must have MD5 {archive.md5}, got {md5}: the file is damaged. Hint: download it again; for another "
        "edition, prepare.verify=false."
    )


class Md5Thread(threading.Thread):
    """Compute the MD5 of a file while it is extracted: 138 GiB take minutes, and both read the same cached pages."""

    def __init__(self, path: Path):
        super().__init__(name=f"md5 of {path.name}", daemon=True)
        self._path, self._num_bytes = path, max(path.stat().st_size, 1)
        self._num_read, self._cancelled = 0, threading.Event()
        self._result: str | OSError | None = None
        self.start()

    @property
    def fraction(self) -> float:
        """Return how much of the file is read, 0 to 1."""
        return self._num_read / self._num_bytes

    def cancel(self) -> None:
        self._cancelled.set()

    def result(self, on_line: Callable[[str], None]) -> str:
        """Wait for the MD5, with a progress bar. Raises RunError where the file cannot be read."""
        progress = Progress(f"MD5 of {self._path.name}", self._num_bytes // MIB, "MiB", on_line=on_line)
        progress.add_earlier(self._num_read // MIB)
        while self.is_alive():
            self.join(0.2)  # in short turns: a signal is handled in between
            progress.add(self._num_read // MIB - progress.done)
        progress.close()
        if isinstance(self._result, str):
            return self._result
        raise RunError(f"{self._path} cannot be read: {self._result}. Hint: check the disk it is on.")

    def run(self) -> None:
        digest = hashlib.md5(usedforsecurity=False)
        try:
            with self._path.open("rb", buffering=0) as file:
                while not self._cancelled.is_set() and (block := file.read(_BLOCK)):
                    digest.update(block)
                    self._num_read += len(block)
            self._result = digest.hexdigest()
        except OSError as error:
            self._result = error
