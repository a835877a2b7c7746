"""Compute the SHA-256 of the archives, in the form that `sha256sum -c` reads, and compare the MD5 of those that
image-net.org publishes."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from torchvision.datasets import imagenet as torchvision_imagenet

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.console import Progress
from imagenet_ddp.system.files import atomic_write

SUMS = "SHA256SUMS"
CACHE = ".checksums.json"
CHUNK_BYTES = 1_000_000


def sums_of(files: Sequence[Path], folder: Path, draft: Path) -> bytes:
    """Return a line for each file: its SHA-256 and its path in the folder. draft: where they are kept, so that the
    command reads an unchanged file for them only once. Raises ConfigError for another MD5 than the published one."""
    known: dict[str, list[int | str]] = {}
    with suppress(OSError, ValueError):
        known = json.loads((draft / CACHE).read_text())
    published = dict(torchvision_imagenet.ARCHIVE_META.values())
    total = sum(path.stat().st_size for path in files)
    wrong: list[str] = []
    with closing(Progress("checksums", total // CHUNK_BYTES, "MB")) as progress:
        for path in files:
            name, status = str(path.relative_to(folder)), path.stat()
            # a copy of another file may keep the time of its last change, but has another inode or ctime
            state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
            if known.get(name, [])[:4] != state:
                sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
                with path.open("rb", buffering=0) as file:
                    while chunk := file.read(CHUNK_BYTES):
                        sha256.update(chunk)
                        if path.name in published:
                            md5.update(chunk)
                        progress.add(1)
                if published.get(path.name, md5.hexdigest()) != md5.hexdigest():
                    wrong.append(str(path))
                known[name] = [*state, sha256.hexdigest()]
                atomic_write(draft / CACHE, json.dumps(known))
    if wrong:
        raise ConfigError(
            f"ImageNet's archives must have their published MD5, but {' and '.join(wrong)} have not. "
            "Hint: download them again."
        )
    names = [str(path.relative_to(folder)) for path in files]
    return "".join(f"{known[name][-1]}  {name}\n" for name in names).encode(errors="surrogateescape")
