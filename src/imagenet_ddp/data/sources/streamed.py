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
import hashlib
import math
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.config.schema.data import StreamedData
from imagenet_ddp.data.decoding.errors import LoadError
from imagenet_ddp.data.sources.base import Pending, Scan, Source, SourceType
from imagenet_ddp.data.sources.pack_format import (
    FILE,
    File,
    Split,
    missing_features,
    parse_manifest,
    required_splits,
)
from imagenet_ddp.data.sources.packed import PackedImages, Shard, source_of
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix, Mistake, must_be, setting
from imagenet_ddp.system.bounded_wait import lock_or_wait
from imagenet_ddp.system.files import MOST_BYTES, cache_dir, sha256
from imagenet_ddp.system.packages import missing_package
from imagenet_ddp.system.text import MIB, first_line, without_secrets

GIB = 2**30
TOUCH_S = 5.0  # time between two updates of the times of a shard in use
TRIES = 4
FIRST_WAIT_S = 0.5  # wait after the first failure; doubled after each further failure
_FINAL = (FileNotFoundError, PermissionError, ImportError)  # trying again would not help
LOOK_S = 0.2  # time between two checks of which shards are in use
AFTER_FAILURE_S = 5.0  # wait after a failed fetch; the process that needs the shard reports the failure


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


class StreamedImages(PackedImages):
    """One split of a remote packed folder. Reading raises ShardError if a shard cannot be fetched."""

    def __init__(self, cache: ShardCache, name: str, split: Split, form: str, **options: Any):
        self._cache = cache
        self._stop: threading.Event | None = None
        super().__init__(cache.folder, name, split, form, location=without_secrets(cache.url), **options)

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
        while True:  # another process may remove the shard from the cache before it is opened
            self._cache.fetch(self.split.shards[number])
            with contextlib.suppress(FileNotFoundError):
                return super()._shard(number)


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


class Streamed(SourceType[StreamedData]):
    def scan(self, data: StreamedData, seed: int, verb: str, *, whole: bool = True) -> Scan:
        """Look at the form of the address. No server is contacted."""
        pending = Pending(f"the index will be fetched from {data.root}")
        return Scan(data, seed, verb, _wrong_address(data), partial(_open, data, verb), pending)

    def recognise(self, root: str, folder: Path, otherwise: str) -> list[str]:
        is_address = root.startswith(("s3://", "gs://", "http://", "https://"))
        return ["data=streamed", f"data.root={root}"] if is_address else []


def _wrong_address(data: StreamedData) -> list[str]:
    root, example = str(data.root), "set data.root=s3://BUCKET/FOLDER to the address of an uploaded packed folder"
    scheme, colon, _ = root.partition("://")
    if not colon:
        return [
            f"data.root must be the address of a packed folder, with ://, got {data.root or 'null'}. Hint: "
            f"{example}, or set data=packed for a folder on this machine."
        ]
    import fsspec
    from fsspec.registry import known_implementations

    library = known_implementations.get(scheme, {"class": "fsspec."})["class"].partition(".")[0]
    extra = "imagenet_ddp[s3]" if library == "s3fs" else ""
    if missing := missing_package(f"data.root={root}", library, requirement=extra, instead=Fix(said=example)):
        return list(map(str, missing))
    try:
        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:  # a missing library, an unknown protocol
        return [f"data.root={root} cannot be read: {error}. Hint: install the library that it names, or {example}."]
    return []


def _open(data: StreamedData, verb: str) -> Source:
    """Fetch the index, but none of the shards."""
    url = str(data.root).rstrip("/")
    try:
        with tempfile.TemporaryDirectory() as folder:
            download(f"{url}/{FILE}", data.args, Path(folder, FILE), MOST_BYTES)
            raw = Path(folder, FILE).read_bytes()
        manifest = parse_manifest(raw, f"{url}/{FILE}")
        found = missing_features(manifest, url, data, verb)
        if verb == "train" and manifest.exif_orientation and not data.exif_orientation:  # Packed.implied sets it
            found.append(
                f"data.exif_orientation must be true, because the images in {without_secrets(url)} were turned by "
                "their EXIF data when they were packed, and photographs that the net is used on later must be, too. "
                "Hint: set data.exif_orientation=true."
            )
        if found:
            raise ConfigError(found)
        splits = [manifest.splits[name] for name in required_splits(verb)]
        cache = _make_cache(url, hashlib.sha256(raw).hexdigest()[:16], splits, data)
        for split in splits:
            for file in split.arrays.values():
                cache.fetch(file)
    except ShardError as error:
        raise ConfigError(str(error)) from error
    return source_of(manifest, data, verb, partial(StreamedImages, cache))


def _make_cache(url: str, pack_id: str, splits: Sequence[Split], data: StreamedData) -> ShardCache:
    """Make the cache of a remote packed folder. pack_id: hash of its content, so that it is never mixed with another
    packed folder at the same address. Raises ConfigError if there is no room for the index, for the shards that are in
    use at the same time or, without a limit, for all shards."""
    folder = (Path(data.cache_dir) if data.cache_dir else cache_dir(os.environ) / "streamed") / pack_id
    max_bytes = None if data.cache_gib is None else int(data.cache_gib * GIB)
    try:
        cache = ShardCache(url, data.args, folder, max_bytes)
    except OSError as error:
        what = f"data.cache_dir ({folder.parent}) must be writable, but is not: {error.strerror}"
        raise ConfigError(Mistake(what, ("data.cache_dir",), (setting("data.cache_dir=FOLDER"),))) from error
    kept = [file for split in splits for file in (*split.arrays.values(), *(split.shards if max_bytes is None else ()))]
    needed = sum(file.num_bytes for file in kept if not cache.is_there(file))
    if needed > (free := shutil.disk_usage(folder).free):
        what = f"{folder} must have room for {needed / MIB:,.0f} MiB, but its disk has {free / MIB:,.0f} MiB free"
        ways = (
            setting("data.cache_gib=SIZE", aim="to keep fewer shards"),
            setting("data.cache_dir=FOLDER", aim="to use another disk"),
        )
        raise ConfigError(Mistake(what, ("data.cache_gib", "data.cache_dir"), ways))
    if max_bytes is None:
        return cache
    for split in splits:
        window = (data.shuffle_window_shards or len(split.shards)) if split.shuffled else 1
        needed = min(2 * window, len(split.shards)) * max(shard.num_bytes for shard in split.shards)
        if needed > max_bytes:
            least = math.ceil(1000 * needed / GIB) / 1000
            allowed = f"at least {least:g}, the size of two windows of {window} shards (data.shuffle_window_shards)"
            way, other = setting(f"data.cache_gib={least:g}"), "set a smaller data.shuffle_window_shards"
            raise ConfigError(must_be("data.cache_gib", allowed, str(data.cache_gib), way, hint=other))
    return cache
