"""Fetch the shards of a packed folder in an object store through fsspec to this machine's disk, once for all processes.

Processes coordinate only through files. Each shard has a lock file. The modification time of a shard is the time at
which it was last needed (the oldest shards are evicted first), and its access time is the time at which an image was
last read from it. The file systems have their own timeouts: botocore closes a connection after 60 s without a byte,
aiohttp after 300 s in total.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from imagenet_ddp.data.decoding.errors import LoadError
from imagenet_ddp.data.sources.pack_format import (
    FILE,
    File,
)
from imagenet_ddp.system.bounded_wait import lock_or_wait
from imagenet_ddp.system.files import sha256
from imagenet_ddp.system.text import first_line

TRIES = 4
FIRST_WAIT_S = 0.5  # wait after the first failure; doubled after each further failure
_FINAL = (FileNotFoundError, PermissionError, ImportError)  # trying again would not help


class ShardError(LoadError):
    """Raised if a file cannot be fetched."""


class ShardCache:
    """Cache of one packed folder. url: its address. options: of its file system, such as endpoint_url. folder: used for
    no other packed folder. max_bytes: size limit of the cache, which shards that are being fetched may exceed; None:
    no limit."""

    def __init__(self, url: str, options: Mapping[str, Any], folder: Path, max_bytes: int | None):
        self.url, self.options, self.folder, self.max_bytes = url, options, folder, max_bytes
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, file: File) -> Path:
        return self.folder / file.file

    def is_there(self, file: File) -> bool:
        return self.path(file).exists()

    def fetch(self, file: File) -> None:
        """Fetch the file, or wait if another process is fetching it. Raises ShardError."""
        if not self.is_there(file):
            with lock_or_wait(self.folder / f"{file.file}.lock", silent=True):
                if not self.is_there(file):
                    self._fetch(file)

    def last_opened(self, files: Sequence[File], moment_s: float) -> int | None:
        """Return the position of the last of these files from which any process has read since moment_s, or None if
        there is none."""
        for position in reversed(range(len(files))):
            with contextlib.suppress(OSError):
                if self.path(files[position]).stat().st_atime >= moment_s:
                    return position
        return None

    def _fetch(self, file: File) -> None:
        if self.max_bytes is not None:
            self._make_room(self.max_bytes - file.num_bytes)
        part = self.folder / f"{file.file}.part"  # a fixed name, so that the part left by a kill is overwritten

        def check() -> None:
            if sha256(part) != file.sha256:
                raise ValueError(f"its SHA-256 is not that in {FILE}")

        download(f"{self.url}/{file.file}", self.options, part, file.num_bytes, check)
        os.utime(part, (0, time.time()))  # needed now, but not yet read by any process
        part.replace(self.path(file))

    def _make_room(self, max_bytes: int) -> None:
        """Evict the least recently used shards until the cache has at most this size."""
        found = []
        for path in self.folder.glob("*.bin*"):
            with contextlib.suppress(FileNotFoundError):  # another process may evict shards, too
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        taken = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if taken > max_bytes and path.suffix == ".bin":
                path.unlink(missing_ok=True)
                taken -= size


def download(
    url: str, options: Mapping[str, Any], target: Path, most_bytes: int, check: Callable[[], None] = lambda: None
) -> None:
    """Download a file of a store, after several tries if necessary. Raises ShardError, also for a file of more than
    most_bytes, because a server may send without end. check: called after a download; raises ValueError."""
    import fsspec  # here, because each of its file systems imports a library of its own

    class Limit(fsspec.Callback):
        def relative_update(self, inc: int = 1) -> None:
            super().relative_update(inc)
            if self.value > most_bytes:
                raise ValueError(f"it has more than {most_bytes:,} bytes")

    for number in range(TRIES):
        try:
            # fsspec caches file systems per process; they cannot be used after a fork
            fs, path = fsspec.core.url_to_fs(url, **options)
            fs.get_file(path, str(target), callback=Limit())
            return check()
        except Exception as error:
            if number == TRIES - 1 or isinstance(error, _FINAL):
                raise ShardError(
                    f"{url} cannot be read: {type(error).__name__}: {first_line(error)}. Hint: check the address, the "
                    "credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE) and the free space of "
                    "data.cache_dir. Set +data.args.anon=true for a public bucket, and +data.args.endpoint_url=URL for "
                    "a store other than Amazon's."
                ) from error
            time.sleep(FIRST_WAIT_S * 2**number)
