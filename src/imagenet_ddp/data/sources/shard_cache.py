"""Cache the shards of a remote packed folder on this machine's disk. Each shard is fetched once for all processes and
verified, and the size of the cache is limited.

Processes coordinate only through files. Each shard has a lock file. The modification time of a shard is the time at
which it was last needed (the oldest shards are evicted first), and its access time is the time at which an image was
last read from it.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path

from imagenet_ddp.data.sources.download import lock_or_wait
from imagenet_ddp.data.sources.manifest import File
from imagenet_ddp.data.sources.object_store import Remote, ShardError
from imagenet_ddp.system.checksum import sha256

GIB = 2**30
TOUCH_S = 5.0  # time between two updates of the times of a shard in use
ABANDONED_S = 3600.0  # a part file older than this belongs to a process that was killed


class ShardCache:
    """Cache of one packed folder. folder: used for no other packed folder. shards: all its shards. max_bytes: size
    limit of the cache; None: no limit."""

    def __init__(self, remote: Remote, folder: Path, shards: Sequence[File], max_bytes: int | None):
        self.remote, self.folder, self.shards, self.max_bytes = remote, folder, tuple(shards), max_bytes
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, file: File) -> Path:
        return self.folder / file.file

    def is_there(self, file: File) -> bool:
        return self.path(file).exists()

    def fetch(self, file: File) -> Path:
        """Fetch the shard, or wait if another process is fetching it. Return its path. Raises ShardError."""
        path = self.path(file)
        if not path.exists():
            with lock_or_wait(self._lock(file), silent=True):
                if not path.exists():
                    self._fetch(file)
        return path

    def prefetch(self, file: File) -> bool:
        """Fetch the shard, unless another process is fetching it. Return False if fetching it fails."""
        try:
            with self._lock(file).open("a") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not self.is_there(file):
                    self._fetch(file)
        except BlockingIOError:
            return True
        except (ShardError, OSError):
            return False
        return True

    def last_opened(self, files: Sequence[File], moment_s: float) -> int | None:
        """Return the position of the last of these files from which any process has read since moment_s, or None if
        there is none."""
        for position in reversed(range(len(files))):
            with contextlib.suppress(OSError):
                if self.path(files[position]).stat().st_atime >= moment_s:
                    return position
        return None

    def _fetch(self, file: File) -> None:
        part = self._part(file)
        for is_last in (False, True):
            self._make_room(file)
            self.remote.get(file.file, part)
            if part.stat().st_size == file.num_bytes and sha256(part) == file.sha256:
                break
            part.unlink()
            if is_last:
                raise ShardError(
                    f"{self.remote.url}/{file.file} must be unchanged since packing, but its checksum differs. Hint: "
                    "upload that file again, and make sure that all files come from the same packed folder."
                )
        os.utime(part, (0, time.time()))  # needed now, but not yet read by any process
        part.replace(self.path(file))

    def _make_room(self, file: File) -> None:
        """Evict the least recently used shards until there is room, then create the part file, so that other processes
        take it into account."""
        with (self.folder / "room.lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)  # held only as long as it takes to list a folder
            if self.max_bytes is not None and file in self.shards:
                whole, taken = self._there()
                for _, path, size in sorted(whole):
                    if taken + file.num_bytes <= self.max_bytes:
                        break
                    path.unlink(missing_ok=True)
                    taken -= size
            self._part(file).touch()

    def _there(self) -> tuple[list[tuple[float, Path, int]], int]:
        """Return a list of (modification time, path, bytes) of all complete shards, and the total bytes of these shards
        and of those that are being fetched."""
        whole, taken = [], 0
        for file in self.shards:
            with contextlib.suppress(FileNotFoundError):
                stat = self.path(file).stat()
                whole.append((stat.st_mtime, self.path(file), file.num_bytes))
                taken += file.num_bytes
            with contextlib.suppress(FileNotFoundError):
                if time.time() - self._part(file).stat().st_mtime < ABANDONED_S:
                    taken += file.num_bytes
                else:
                    self._part(file).unlink()
        return whole, taken

    def _lock(self, file: File) -> Path:
        return self.folder / f"{file.file}.lock"

    def _part(self, file: File) -> Path:
        return self.folder / f"{file.file}.part"
