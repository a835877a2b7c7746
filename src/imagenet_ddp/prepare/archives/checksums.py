"""Compute the SHA-256 of the archives, in the form that `sha256sum -c` reads, and compare the MD5 of those that
image-net.org publishes."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from torchvision.datasets import imagenet as torchvision_imagenet

from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.system.console import Progress
from imagenet_ddp.system.files import atomic_write

SUMS = "SHA256SUMS"
CACHE = ".checksums.json"
CHUNK_BYTES = 1_000_000


def sums_of(files: Sequence[Path], folder: Path, draft: Path) -> bytes:
    """Return a line for each file: its SHA-256 and its path in the folder. draft: where they are kept, so that the
    command reads an unchanged file for them only once. Raises ConfigError for another MD5 than the published one."""
    known: dict[str, dict[str, Any]] = {}
    with suppress(OSError, ValueError):
        known = json.loads((draft / CACHE).read_text())
    published = dict(torchvision_imagenet.ARCHIVE_META.values())
    total = sum(path.stat().st_size for path in files)
    wrong: list[str] = []
    with closing(Progress("checksums", total // CHUNK_BYTES, "MB")) as progress:
        for path in files:
            name, state = str(path.relative_to(folder)), _state(path)
            if known.get(name, {}).get("state") != state:
                sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
                with path.open("rb", buffering=0) as file:
                    while chunk := file.read(CHUNK_BYTES):
                        sha256.update(chunk)
                        if path.name in published:
                            md5.update(chunk)
                        progress.add(1)
                if published.get(path.name, md5.hexdigest()) != md5.hexdigest():
                    wrong.append(str(path))
                known[name] = {"state": state, "sha256": sha256.hexdigest()}
                atomic_write(draft / CACHE, json.dumps(known))
    if wrong:
        raise ConfigError(
            f"ImageNet's archives must have their published MD5, but {' and '.join(wrong)} have not. "
            "Hint: download them again."
        )
    names = [str(path.relative_to(folder)) for path in files]
    first_of = dict[str, str]()
    for name in names:
        if (other := first_of.setdefault(known[name]["sha256"], name)) != name:
            raise ConfigError(f"{name} must be another file than {other}, but has the same content. Hint: remove it.")
    return "".join(f"{known[name]['sha256']}  {name}\n" for name in names).encode(errors="surrogateescape")


def require_unchanged(files: Sequence[Path], folder: Path, draft: Path) -> None:
    """Raise RunError if a file has changed since sums_of has read it."""
    known = json.loads((draft / CACHE).read_text())
    for path in files:
        if known[str(path.relative_to(folder))]["state"] != _state(path):
            raise RunError(f"{path} must stay as it is while it is read, but has changed. Hint: run the command again.")


def _state(path: Path) -> list[int]:
    """Return what differs after a change. A copy may keep the time of the last change, but not ctime and inode."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
