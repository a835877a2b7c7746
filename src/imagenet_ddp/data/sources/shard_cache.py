"""Fetch the shards of a remote packed folder through fsspec to this machine's disk, once for all processes, verified,
and within a size limit.

Processes coordinate only through files. Each shard has a lock file. The modification time of a shard is the time at
which it was last needed (the oldest shards are evicted first), and its access time is the time at which an image was
last read from it. The file systems have their own timeouts: botocore closes a connection after 60 s without a byte,
aiohttp after 300 s in total.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagenet_ddp.data.bad_images import LoadError
from imagenet_ddp.data.sources.manifest import File
from imagenet_ddp.system.checksum import sha256
from imagenet_ddp.system.file_lock import lock_or_wait
from imagenet_ddp.system.text import first_line, install

GIB = 2**30
TOUCH_S = 5.0  # time between two updates of the times of a shard in use
ABANDONED_S = 3600.0  # a part file older than this belongs to a process that was killed
TRIES = 4
FIRST_WAIT_S = 0.5  # wait after the first failure; doubled after each further failure
_FINAL = (FileNotFoundError, PermissionError, ImportError, NotADirectoryError, IsADirectoryError)
_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "InvalidAccessKeyId", "SignatureDoesNotMatch")


class ShardError(LoadError):
    """Raised if a file cannot be fetched."""


@dataclass(frozen=True)
class Remote:
    """A folder in an object store or on a server. url: s3://BUCKET/FOLDER, or any other address that fsspec supports.
    options: options of its file system, such as endpoint_url."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def read(self, name: str) -> bytes:
        """Read a small file. Raises ShardError."""
        return self._retry(name, lambda fs, path: fs.cat_file(path))

    def get(self, name: str, part: Path) -> None:
        """Download a large file into the local file `part`. Raises ShardError."""
        self._retry(name, lambda fs, path: fs.get_file(path, str(part)))

    def _retry(self, name: str, call: Callable[[Any, str], Any]) -> Any:
        import fsspec  # here, because each of its file systems imports a library of its own

        for number in range(TRIES):
            try:
                # fsspec caches file systems per process; they cannot be used after a fork
                return call(*fsspec.core.url_to_fs(f"{self.url}/{name}", **self.options))
            except Exception as error:
                if number == TRIES - 1 or isinstance(error, _FINAL) or _names_credentials(error) or _is_full(error):
                    raise ShardError(self._message(name, error)) from error
                time.sleep(FIRST_WAIT_S * 2**number)
        raise AssertionError

    def _message(self, name: str, error: Exception) -> str:
        what, hint = (
            f"could not be read in {TRIES} tries",
            "check that the address is correct and that its server is running. Set +data.args.endpoint_url=URL for a "
            "store other than Amazon's",
        )
        if isinstance(error, ImportError):
            what, hint = "needs a library that is missing", library_hint(self.url)
        elif isinstance(error, PermissionError) or _names_credentials(error):
            what, hint = (
                "cannot be read without valid credentials",
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine a role that may "
                "list and read the bucket. For a public bucket, set +data.args.anon=true",
            )
        elif isinstance(error, FileNotFoundError):
            what = "does not exist"
            hint = "upload all files of the packed folder, and set data.root=ADDRESS to the folder's address"
        elif _is_full(error):
            what = "has no room on the disk of data.cache_dir"
            hint = "reduce data.cache_gib, or set data.cache_dir=FOLDER to a folder on another disk"
        return f"{self.url}/{name} {what} ({first_line(error)}). Hint: {hint}."


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _names_credentials(error: Exception) -> bool:
    return any(name in f"{type(error).__name__} {error}" for name in _CREDENTIALS)


def library_hint(url: str) -> str:
    return f"run `{install('imagenet_ddp[s3]')}`" if url.startswith(("s3:", "s3a:")) else "install that library"


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

    def fetch(self, file: File) -> None:
        """Fetch the shard, or wait if another process is fetching it. Raises ShardError."""
        if not self.is_there(file):
            with lock_or_wait(self._lock(file), silent=True):
                if not self.is_there(file):
                    self._fetch(file)

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
        for _ in range(2):
            self._make_room(file)
            self.remote.get(file.file, part)
            if part.stat().st_size == file.num_bytes and sha256(part) == file.sha256:
                os.utime(part, (0, time.time()))  # needed now, but not yet read by any process
                part.replace(self.path(file))
                return
            part.unlink()
        raise ShardError(
            f"{self.remote.url}/{file.file} must be unchanged since packing, but its checksum differs. Hint: upload "
            "that file again, and make sure that all files come from the same packed folder."
        )

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
                whole.append((self.path(file).stat().st_mtime, self.path(file), file.num_bytes))
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
