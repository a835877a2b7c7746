"""Cache the shards of a remote pack on this machine's disk: fetched once for all its processes, verified, and bounded
in size.

Processes coordinate only through the files: a lock per shard, its modification time as the time it was last needed (the
oldest shards are evicted first), and its access time as the time an image was last read from it.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path

from imagenet_ddp.data.sources.download import lock_or_wait
from imagenet_ddp.data.sources.packed.manifest import File
from imagenet_ddp.data.sources.packed.object_store import Remote, ShardError
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.checksum import sha256
from imagenet_ddp.system.console import print_message

GIB = 2**30
TOUCH_S = 5.0  # between two notes that a shard is in use
QUIET_S = 15.0  # so long a wait for another process is not worth a line: usually a shard arrives within seconds
ABANDONED_S = 3600.0  # a part so old belongs to a process that was killed


class ShardCache:
    """folder: of this pack only. shards: all of the pack. max_bytes: limit of the cache's size; None: no limit."""

    def __init__(self, remote: Remote, folder: Path, shards: Sequence[File], max_bytes: int | None):
        self.remote, self.folder, self.shards, self.max_bytes = remote, folder, tuple(shards), max_bytes
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, file: File) -> Path:
        return self.folder / file.file

    def is_there(self, file: File) -> bool:
        return self.path(file).exists()

    def fetch(self, file: File) -> Path:
        """Fetch the shard, or wait if another process is fetching it. Raises ShardError."""
        path = self.path(file)
        if not path.exists():
            try:
                with lock_or_wait(self._lock(file), self._part(file), print_message, QUIET_S):
                    if not path.exists():
                        self._fetch(file)
            except ConfigError as error:  # a stalled process
                raise ShardError(str(error)) from error
        return path

    def prefetch(self, file: File) -> bool:
        """Fetch the shard, unless another process is fetching it; return False if that fails."""
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
        """Return the last position of the files that any process has read from since then; None: none was."""
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
                    f"{self.remote.url}/{file.file} must be as it was packed, but its checksum is another "
                    "one. Hint: upload that file again, all of them from the same pack."
                )
        os.utime(part, (0, time.time()))  # needed now, read by none
        part.replace(self.path(file))

    def _make_room(self, file: File) -> None:
        """Evict the least recently used shards; then create the part file, so that other processes count it."""
        with (self.folder / "room.lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)  # held for as long as it takes to list a folder
            if self.max_bytes is not None and file in self.shards:
                whole, taken = self._there()
                for _, path, size in sorted(whole):
                    if taken + file.num_bytes <= self.max_bytes:
                        break
                    path.unlink(missing_ok=True)
                    taken -= size
            self._part(file).touch()

    def _there(self) -> tuple[list[tuple[float, Path, int]], int]:
        """Return ([modification time, path, bytes] of all complete shards, bytes of these and of those being
        fetched)."""
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
