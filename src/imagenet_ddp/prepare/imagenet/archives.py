"""ImageNet's archives as published, and whether a file is one of them."""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.progress_bar import Progress

_BLOCK = 2**22  # bytes read at once


@dataclass(frozen=True)
class Archive:
    name: str
    md5: str
    num_bytes: int | None  # None: not known


@dataclass(frozen=True)
class Edition:
    """num_images, num_classes: what the archives hold in all."""

    train: Archive
    val: Archive
    devkit: Archive
    num_images: dict[str, int]
    num_classes: int


# MD5: as in torchvision.datasets.imagenet (ARCHIVE_META). Bytes: as listed by the download page's users and by the
# indexes of several mirrors. Images: Russakovsky et al. 2015, arXiv:1409.0575, table 2.
ILSVRC2012 = Edition(
    train=Archive("ILSVRC2012_img_train.tar", "1d675b47d978889d74fa0da5fadfb00e", 147_897_477_120),
    val=Archive("ILSVRC2012_img_val.tar", "29b22e2961454d5413ddabcf34fc5622", 6_744_924_160),
    devkit=Archive("ILSVRC2012_devkit_t12.tar.gz", "fa75699e90414af021442c21a62c3abf", None),
    num_images={"train": 1_281_167, "val": 50_000},
    num_classes=1_000,
)


def wrong_size(path: Path, archive: Archive) -> list[str]:
    """One sentence where the file cannot be the archive, else none."""
    size = path.stat().st_size
    if archive.num_bytes is None or size == archive.num_bytes:
        return []
    why = "the download or copy broke off" if size < archive.num_bytes else "it is another file"
    return [
        f"{path} must be {archive.num_bytes:,} bytes, but is {size:,}: {why}. Hint: download it again; where "
        "it is another edition on purpose, prepare.verify=false."
    ]


def wrong_md5(path: Path, expected: str, found: str) -> str:
    return (
        f"{path} must have MD5 {expected}, but has {found}: it was damaged on its way. Hint: download it "
        "again; where it is another edition on purpose, prepare.verify=false."
    )


class Md5:
    """The MD5 of a file, taken by a thread beside other work: 138 GiB take minutes, and what is unpacked meanwhile is
    read from the same pages of memory."""

    def __init__(self, path: Path):
        self._path, self._num_bytes = path, max(path.stat().st_size, 1)
        self._done = 0  # bytes
        self._stop = threading.Event()
        self._found: str | OSError | None = None
        self._thread = threading.Thread(target=self._take, name=f"md5 of {path.name}", daemon=True)
        self._thread.start()

    @property
    def share(self) -> float:
        return self._done / self._num_bytes

    def stop(self) -> None:
        self._stop.set()

    def result(self, on_line: Callable[[str], None] | None = None) -> str:
        """Waits for its end, and shows how far it is. Raises ConfigError where the file cannot be read."""
        before = self._done
        progress = Progress(f"MD5 of {self._path.name}", self._num_bytes // 2**20, "MiB", on_line=on_line)
        progress.before(before // 2**20)
        while self._thread.is_alive():
            self._thread.join(0.2)  # in short turns: a signal is answered in between
            now = self._done
            progress.add(now // 2**20 - before // 2**20)
            before = now
        progress.end()
        if isinstance(self._found, str):
            return self._found
        raise ConfigError(f"{self._path} cannot be read to its end: {self._found}. Hint: look at the disk it lies on.")

    def _take(self) -> None:
        digest = hashlib.md5(usedforsecurity=False)
        try:
            with self._path.open("rb", buffering=0) as file:
                while not self._stop.is_set() and (block := file.read(_BLOCK)):
                    digest.update(block)
                    self._done += len(block)
            self._found = digest.hexdigest()
        except OSError as error:
            self._found = error
