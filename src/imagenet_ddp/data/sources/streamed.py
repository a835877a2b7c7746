"""Read images of a packed folder in an object store. Shards are fetched to this machine's disk before they are needed
(shard_cache.py), and read there as in packed.py.

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
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.config.schema.data import StreamedData
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.data.sources.base import Pending, Scan, Source, SourceType
from imagenet_ddp.data.sources.pack_format import (
    FILE,
    File,
    Split,
    missing_features,
    parse_manifest,
)
from imagenet_ddp.data.sources.packed import PackedImages, Shard, source_of
from imagenet_ddp.data.sources.shard_cache import ShardCache, ShardError, download
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix, Mistake, must_be, setting
from imagenet_ddp.system.files import MOST_BYTES, cache_dir
from imagenet_ddp.system.packages import missing_package
from imagenet_ddp.system.text import MIB, without_secrets

GIB = 2**30
TOUCH_S = 5.0  # time between two updates of the times of a shard in use
LOOK_S = 0.2  # time between two checks of which shards are in use
AFTER_FAILURE_S = 5.0  # wait after a failed fetch; the process that needs the shard reports the failure


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
    def scan(self, data: StreamedData, seed: int, purpose: Purpose, *, whole: bool = True) -> Scan:
        """Look at the form of the address. No server is contacted."""
        pending = Pending(f"the index will be fetched from {data.root}")
        return Scan(data, seed, purpose, _wrong_address(data), partial(_open, data, purpose), pending)

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
    if missing := missing_package(f"data.root={root}", library, instead=Fix(said=example)):
        return list(map(str, missing))
    try:
        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:  # a missing library, an unknown protocol
        return [f"data.root={root} cannot be read: {error}. Hint: install the library that it names, or {example}."]
    return []


def _open(data: StreamedData, purpose: Purpose) -> Source:
    """Fetch the index, but none of the shards."""
    url = str(data.root).rstrip("/")
    try:
        with tempfile.TemporaryDirectory() as folder:
            download(f"{url}/{FILE}", data.args, Path(folder, FILE), MOST_BYTES)
            raw = Path(folder, FILE).read_bytes()
        manifest = parse_manifest(raw, f"{url}/{FILE}")
        found = missing_features(manifest, url, data, purpose)
        if purpose.needs_train and manifest.exif_orientation and not data.exif_orientation:  # Packed.implied sets it
            found.append(
                f"data.exif_orientation must be true, because the images in {without_secrets(url)} were turned by "
                "their EXIF data when they were packed, and photographs that the net is used on later must be, too. "
                "Hint: set data.exif_orientation=true."
            )
        if found:
            raise ConfigError(found)
        splits = [manifest.splits[name] for name in purpose.splits]
        cache = _make_cache(url, hashlib.sha256(raw).hexdigest()[:16], splits, data)
        for split in splits:
            for file in split.arrays.values():
                cache.fetch(file)
    except ShardError as error:
        raise ConfigError(str(error)) from error
    return source_of(manifest, data, purpose, partial(StreamedImages, cache))


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
