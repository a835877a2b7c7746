"""Read images of a packed folder in an object store. Shards are fetched through fsspec to this machine's disk before
they are needed, once for all processes, and read there as in packed.py.

Processes coordinate only through files. Each shard has a lock file. The modification time of a shard is the time at
which it was last needed (the oldest shards are evicted first), and its access time is the time at which an image was
last read from it. The file systems have their own timeouts: botocore closes a connection after 60 s without a byte,
aiohttp after 300 s in total.

Only the process that requests the order of an epoch knows this order. One of its threads watches which shards are in
use on this machine, and fetches the shards of the next window. Validation reads the shards in order, so there the
thread fetches the next shard.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.bad_images import LoadError
from imagenet_ddp.data.sources import manifest as manifests
from imagenet_ddp.data.sources.base import Pending, Source, SourceType
from imagenet_ddp.data.sources.manifest import FILE, File, Split
from imagenet_ddp.data.sources.packed import PackedImages, Shard, source_of
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.bounded_wait import lock_or_wait
from imagenet_ddp.system.files import cache_dir, sha256
from imagenet_ddp.system.text import MIB, first_line, install

GIB = 2**30
TOUCH_S = 5.0  # time between two updates of the times of a shard in use
ABANDONED_S = 3600.0  # a part file older than this belongs to a process that was killed
TRIES = 4
FIRST_WAIT_S = 0.5  # wait after the first failure; doubled after each further failure
_FINAL = (FileNotFoundError, PermissionError, ImportError, NotADirectoryError, IsADirectoryError)
_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "InvalidAccessKeyId", "SignatureDoesNotMatch")
LOOK_S = 0.2  # time between two checks of which shards are in use
AFTER_FAILURE_S = 5.0  # wait after a failed fetch; the process that needs the shard reports the failure
REOPEN = 5  # number of tries to open a shard that other processes remove from the cache at the same time


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
        what = f"could not be read in {TRIES} tries"
        hint = "check the address and its server. For a store other than Amazon's, set +data.args.endpoint_url=URL"
        if isinstance(error, ImportError):
            what, hint = "needs a library that is missing", library_hint(self.url)
        elif isinstance(error, PermissionError) or _names_credentials(error):
            what = "cannot be read without valid credentials"
            hint = (
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE. For a public bucket, set "
                "+data.args.anon=true"
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

    def _part(self, file: File) -> Path:
        return self.folder / f"{file.file}.part"


class StreamedImages(PackedImages):
    """One split of a remote packed folder. Reading raises ShardError if a shard cannot be fetched."""

    remedy = "delete it and run this command again to fetch it again, or pack the images again"

    def __init__(self, cache: ShardCache, name: str, split: Split, form: str, **options: Any):
        self._cache = cache
        self._stop: threading.Event | None = None
        super().__init__(cache.folder, name, split, form, location=cache.remote.url, **options)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_stop": None}

    def order(self, seed: int, epoch: int) -> np.ndarray | None:
        """Return the same order as PackedImages.order, and start to fetch the shards of that epoch before they are
        needed."""
        if self._stop is not None:
            self._stop.set()
        self._stop = threading.Event()
        weakref.finalize(self, self._stop.set)
        sequence, window = self.split.shards, 1
        if self.split.shuffled:
            sequence = [self.split.shards[shard] for shard in self.shards_of(seed, epoch)]
            window = self._window or len(sequence)
        arguments = (self._cache, sequence, window, self._stop)
        threading.Thread(target=_keep_ahead, args=arguments, name="shards ahead", daemon=True).start()
        return super().order(seed, epoch)

    def _shard(self, number: int) -> Shard:
        shard = self._shards.get(number)
        if shard is None:
            shard = self._open(number)
        now = time.monotonic()
        if now - shard.touched_s > TOUCH_S:
            shard.touched_s = now
            os.utime(shard.file)  # marks the shard as in use, so that it is not evicted
        return shard

    def _open(self, number: int) -> Shard:
        for key in [key for key, shard in self._shards.items() if shard.is_gone()]:
            del self._shards[key]  # removed from the cache; closing it frees its disk space
        for _ in range(REOPEN):
            self._cache.fetch(self.split.shards[number])
            with contextlib.suppress(FileNotFoundError):
                return super()._shard(number)
        raise ShardError(
            f"{self.split.shards[number].file} was repeatedly removed from {self.folder} before it "
            "could be opened. Hint: set a larger data.cache_gib."
        )


def _keep_ahead(cache: ShardCache, sequence: Sequence[File], window: int, stop: threading.Event) -> None:
    """Fetch the remaining shards of the last window in use, and those of the next window, until `stop` is set or all
    shards are in the cache."""
    begin_s = time.time()
    while not stop.wait(LOOK_S):
        if (last := cache.last_opened(sequence, begin_s)) is None:
            continue
        first = last // window * window
        for file in sequence[first : first + 2 * window]:
            if stop.is_set():
                return
            if not cache.is_there(file):
                try:
                    cache.fetch(file)
                except (ShardError, OSError):
                    stop.wait(AFTER_FAILURE_S)
                break  # check again, because another shard may be needed by now
        if first + window >= len(sequence) and all(map(cache.is_there, sequence)):
            return


class Streamed(SourceType):
    def check(self, data: DataConfig, verb: str) -> list[str]:
        """Check the form of the address. No server is contacted."""
        root, example = str(data.root), "set data.root=s3://BUCKET/FOLDER to the address of an uploaded packed folder"
        scheme, colon, _ = root.partition("://")
        if not colon:
            return [
                f"data.root must be the address of a packed folder, with ://, got {data.root or 'null'}. Hint: "
                f"{example}, or set data=packed for a folder on this machine."
            ]
        import fsspec

        try:
            fsspec.get_filesystem_class(scheme)
        except ImportError as error:
            return [f"data.root={root} needs a library that is missing: {error}. Hint: {library_hint(root)}."]
        except ValueError:
            return [
                f"data.root={root} must start with s3:// or another protocol of fsspec, got {scheme}://. "
                f"Hint: {example}."
            ]
        return []

    def recognise(self, root: str, folder: Path, otherwise: str) -> list[str]:
        is_address = root.startswith(("s3://", "gs://", "http://", "https://"))
        return ["data=streamed", f"data.root={root}"] if is_address else []

    def open(self, data: DataConfig, seed: int, verb: str) -> Source:
        """Fetch the index, but none of the shards."""
        remote = Remote(str(data.root).rstrip("/"), data.args)
        try:
            raw = remote.read(FILE)
            manifest = manifests.parse(raw, f"{remote.url}/{FILE}")
            if found := manifests.missing_features(manifest, remote.url, data, verb):
                raise ConfigError(found)
            splits = {name: manifest.splits[name] for name in manifests.required_splits(verb)}
            cache = _make_cache(remote, hashlib.sha256(raw).hexdigest()[:16], splits, data)
            for split in splits.values():
                for file in split.arrays.values():
                    cache.fetch(file)
        except ShardError as error:
            raise ConfigError(str(error)) from error
        return source_of(manifest, data, verb, partial(StreamedImages, cache))

    def pending(self, data: DataConfig, seed: int) -> Pending | None:
        return Pending(f"the index will be fetched from {data.root}")


def _make_cache(remote: Remote, pack_id: str, splits: Mapping[str, Split], data: DataConfig) -> ShardCache:
    """Make the cache of a remote packed folder. pack_id: hash of its content, so that it is never mixed with another
    packed folder at the same address. Raises ConfigError."""
    top = Path(data.cache_dir) if data.cache_dir else cache_dir(os.environ) / "streamed"
    shards = [shard for split in splits.values() for shard in split.shards]
    max_bytes = None if data.cache_gib is None else int(data.cache_gib * GIB)
    try:
        cache = ShardCache(remote, top / pack_id, shards, max_bytes)
    except OSError as error:
        raise ConfigError(
            f"data.cache_dir ({top}) must be writable, but is not: {error.strerror}. Hint: set data.cache_dir=FOLDER."
        ) from error
    _check_room(cache, splits, data)
    return cache


def _check_room(cache: ShardCache, splits: Mapping[str, Split], data: DataConfig) -> None:
    """Check that the cache has room for the shards that are in use at the same time or, if its size is not limited,
    that its disk has room for all shards. Raises ConfigError."""
    if cache.max_bytes is None:
        needed = sum(shard.num_bytes for shard in cache.shards if not cache.is_there(shard))
        if needed > (free := shutil.disk_usage(cache.folder).free):
            raise ConfigError(
                f"{cache.folder} must have room for {needed / MIB:,.0f} MiB of shards, but its disk has "
                f"{free / MIB:,.0f} MiB free. Hint: set data.cache_gib=SIZE to keep fewer shards, or "
                "data.cache_dir=FOLDER to use another disk."
            )
        return
    for split in splits.values():
        window = data.shuffle_window_shards if split.shuffled else 1
        in_use = min(2 * window, len(split.shards)) if window else len(split.shards)
        needed = in_use * max(shard.num_bytes for shard in split.shards)
        if needed > cache.max_bytes:
            raise ConfigError(
                f"data.cache_gib must be at least {needed / GIB:.3g}, the size of two windows of "
                f"data.shuffle_window_shards ({window or 'all'}), got {data.cache_gib}. Hint: set a larger "
                "data.cache_gib, or a smaller data.shuffle_window_shards."
            )
