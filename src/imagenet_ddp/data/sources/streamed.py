"""Read images of a packed folder in an object store. Shards are fetched to this machine's disk before they are needed,
and read there as in packed.py.

Only the process that requests the order of an epoch knows this order. One of its threads watches which shards are in
use on this machine, and fetches the shards of the next window. Validation reads the shards in order, so there the
thread fetches the next shard.
"""

import contextlib
import hashlib
import os
import shutil
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.data.sources import manifest as manifests
from imagenet_ddp.data.sources.base import Pending, Source, SourceType
from imagenet_ddp.data.sources.manifest import FILE, File, Split
from imagenet_ddp.data.sources.packed import PackedImages, Shard, source_of
from imagenet_ddp.data.sources.shard_cache import GIB, TOUCH_S, Remote, ShardCache, ShardError, library_hint
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system import paths
from imagenet_ddp.system.text import MIB

LOOK_S = 0.2  # time between two checks of which shards are in use
AFTER_FAILURE_S = 5.0  # wait after a failed fetch; the process that needs the shard reports the failure
REOPEN = 5  # number of tries to open a shard that other processes remove from the cache at the same time


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
                if not cache.prefetch(file):
                    stop.wait(AFTER_FAILURE_S)
                break  # check again, because another shard may be needed by now
        if first + window >= len(sequence) and all(map(cache.is_there, sequence)):
            return


class Streamed(SourceType):
    def check(self, data: Mapping[str, Any], environ: Mapping[str, str], verb: str) -> list[str]:
        """Check the form of the address. No server is contacted."""
        root = data["root"]
        example = "set data.root=s3://BUCKET/FOLDER to the address of an uploaded packed folder"
        if not root:
            return [f"data.root must be the address of a packed folder, got null. Hint: {example}."]
        scheme, colon, _ = root.partition("://")
        if not colon:
            return [
                f"data.root must be an address with ://, got {root}. Hint: {example}, or set data=packed for a folder "
                "on this machine."
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

    def open(self, data: Mapping[str, Any], seed: int, environ: Mapping[str, str], verb: str) -> Source:
        """Fetch the index, but none of the shards."""
        remote = Remote(data["root"].rstrip("/"), data["args"])
        try:
            raw = remote.read(FILE)
            manifest = manifests.parse(raw, f"{remote.url}/{FILE}")
            if found := manifests.missing_features(manifest, remote.url, data, verb):
                raise ConfigError(found)
            splits = {name: manifest.splits[name] for name in manifests.required_splits(verb)}
            cache = _make_cache(remote, hashlib.sha256(raw).hexdigest()[:16], splits, data, environ)
            for split in splits.values():
                for file in split.arrays.values():
                    cache.fetch(file)
        except ShardError as error:
            raise ConfigError(str(error)) from error
        return source_of(manifest, data, verb, partial(StreamedImages, cache))

    def pending(self, data: Mapping[str, Any], seed: int, environ: Mapping[str, str]) -> Pending | None:
        return Pending(f"the index will be fetched from {data['root']}")


def _make_cache(
    remote: Remote, pack_id: str, splits: Mapping[str, Split], data: Mapping[str, Any], environ: Mapping[str, str]
) -> ShardCache:
    """Make the cache of a remote packed folder. pack_id: hash of its content, so that it is never mixed with another
    packed folder at the same address. Raises ConfigError."""
    top = Path(data["cache_dir"]) if data["cache_dir"] else paths.cache_dir(environ) / "streamed"
    shards = [shard for split in splits.values() for shard in split.shards]
    max_bytes = None if data["cache_gib"] is None else int(data["cache_gib"] * GIB)
    try:
        cache = ShardCache(remote, top / pack_id, shards, max_bytes)
    except OSError as error:
        raise ConfigError(
            f"data.cache_dir ({top}) must be writable, but is not: {error.strerror}. Hint: set data.cache_dir=FOLDER."
        ) from error
    _check_room(cache, splits, data)
    return cache


def _check_room(cache: ShardCache, splits: Mapping[str, Split], data: Mapping[str, Any]) -> None:
    """Check that the cache has room for the shards that are in use at the same time or, if its size is not limited,
    that its disk has room for all shards. Raises ConfigError."""
    total = sum(shard.num_bytes for shard in cache.shards)
    there = sum(shard.num_bytes for shard in cache.shards if cache.is_there(shard))
    if cache.max_bytes is None:
        free = shutil.disk_usage(cache.folder).free
        if total - there > free:
            raise ConfigError(
                f"{cache.folder} must have room for {(total - there) / MIB:,.0f} MiB of shards, but its disk "
                f"has {free / MIB:,.0f} MiB free. Hint: set data.cache_gib=SIZE to keep fewer shards, or "
                "data.cache_dir=FOLDER to use another disk."
            )
        return
    for split in splits.values():
        window = data["shuffle_window_shards"] if split.shuffled else 1
        in_use = min(2 * window, len(split.shards)) if window else len(split.shards)
        needed = in_use * max(shard.num_bytes for shard in split.shards)
        if needed > cache.max_bytes:
            raise ConfigError(
                f"data.cache_gib must be at least {needed / GIB:.3g}, the size of two windows of "
                f"data.shuffle_window_shards ({window or 'all'}), got {data['cache_gib']}. Hint: set a larger "
                "data.cache_gib, or a smaller data.shuffle_window_shards."
            )
