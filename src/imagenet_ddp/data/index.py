"""Which images lie below a folder of class folders: walked once, in parallel, and remembered in a file.

What is remembered counts only while every folder is as it was (walking.stamp_of), so adding, removing or renaming
anything has the tree walked anew; what is inside the image files does not matter to an index. A tree that is walked in
HEAD_START_S needs no file. Otherwise one process of a machine walks, and the others wait for what it writes.
"""

import fcntl
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.data.folders import EXTENSIONS, side_by_side
from imagenet_ddp.data.shapes import cache_dir
from imagenet_ddp.data.shared import SharedArrays
from imagenet_ddp.data.walking import NOWHERE, SAY_EVERY_S, Say, Walk, stamp_of
from imagenet_ddp.schema import ConfigError
from imagenet_ddp.writing import drafted

VERSION = 2  # raise it whenever another list of images may come out of the same tree
HEAD_START_S = 0.2  # 100,000 files of a local disk; opening a file instead costs 10 ms
SETTLE_S = 2.0  # a folder changed so shortly before may change again and keep its time: the coarsest clocks (FAT)
WAIT_S = 1800.0  # longest wait for another process that walks
KEPT = 16  # index files, the last used ones; that of ImageNet's training images has 60 MB


@dataclass
class Index:
    """arrays: text uint8, all paths below folder one after the other; ends int64 (N,), where each ends in it; targets
    int64 (N,), the positions of the classes. Sorted within a class."""

    arrays: SharedArrays
    left_out: Counter[str]  # "beside", "hidden", "special", or an extension -> files
    origin: str = ""  # where it comes from, for the log; "" where that is not worth a word

    def __len__(self) -> int:
        return len(self.arrays["ends"])

    def without(self) -> str:
        """What was left out, as a sentence; "" where nothing was."""
        kinds = self.left_out.copy()
        said = [
            f"{number:,} {words}"
            for kind, words in (
                ("beside", "beside the class folders"),
                ("hidden", "hidden"),
                ("special", "neither files nor folders"),
            )
            if (number := kinds.pop(kind, 0))
        ]
        if others := kinds.total():
            most_first = sorted(kinds, key=lambda kind: (-kinds[kind], not kind, kind))
            names = [kind or "none" for kind in most_first[:4]] + (["..."] if len(kinds) > 4 else [])
            said.append(f"{others:,} not images by extension ({', '.join(names)})")
        total = self.left_out.total()
        return f"{total:,} file{'s' if total > 1 else ''} left out: {', '.join(said)}" if total else ""


@dataclass(frozen=True)
class Cache:
    """Where indexes are remembered. folder: None: nowhere, because of `reason`."""

    folder: Path | None = None
    reason: str = ""
    head_start_s: float = HEAD_START_S
    settle_s: float = SETTLE_S
    wait_s: float = WAIT_S


NO_CACHE = Cache(reason="no place was named")


def find_cache(wished: bool, environ: Mapping[str, str]) -> Cache:
    """wished: data.index_cache."""
    if not wished:
        return Cache(reason="data.index_cache=false")
    try:
        return Cache(cache_dir(environ))
    except ConfigError:
        return Cache(reason="neither HOME nor XDG_CACHE_HOME names a folder")


def open_index(folder: Path, classes: list[str], cache: Cache, say: Say) -> Index:
    """All images below folder/<class> for each class, to any depth; classes without a folder have none.

    PermissionError; ConfigError for other errors of the disk.
    """
    try:
        return _open(folder, classes, cache, say)
    except PermissionError:
        raise
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder} is expected to be readable, but: {error.strerror or error}. HINT: is the disk "
            "still there? data.root=FOLDER names another one."
        ) from error


def _open(folder: Path, classes: list[str], cache: Cache, say: Say) -> Index:
    place = _place(folder, classes, cache.folder) if cache.folder else None
    if place is not None and (found := _remembered(place, folder, classes, say)):
        return found
    walk = Walk(folder, classes, say)
    try:
        if walk.go_on(cache.head_start_s):
            return _walked(walk)
        if place is None:
            walk.go_on()
            return _walked(walk, f"not remembered: {cache.reason}")
        with _alone(place, folder, cache.wait_s, say, walk.end) as is_alone:
            if is_alone:
                walk.go_on()
                return _remember(place, walk, cache.settle_s)
        if found := _remembered(place, folder, classes, say):
            return found
        walk = Walk(folder, classes, say)  # the other one could not write, or took too long
        walk.go_on()
        return _walked(walk, "not remembered")
    finally:
        walk.end()


def _walked(walk: Walk, word: str = "") -> Index:
    arrays, left_out = walk.arrays()
    return Index(SharedArrays(arrays), left_out, f"walked in {walk.seconds:.1f} s, {word}" if word else "")


# ---- remembering ---------------------------------------------------------------------------------------------------


def _key(folder: Path, classes: list[str]) -> dict[str, Any]:
    return {
        "version": VERSION,
        "folder": str(folder.resolve()),
        "extensions": sorted(EXTENSIONS),
        "classes": hashlib.sha256(b"\0".join(map(os.fsencode, classes))).hexdigest(),
    }


def _place(folder: Path, classes: list[str], cache: Path) -> Path:
    """One file for each tree: with a home that several machines share, each one's own disk has an inode of its own."""
    words = f"{sorted(_key(folder, classes).items())} {stamp_of(str(folder))[0]}"
    return cache / f"index-{hashlib.sha256(os.fsencode(words)).hexdigest()[:24]}.npz"


def _remembered(place: Path, folder: Path, classes: list[str], say: Say) -> Index | None:
    """None: there is none, or it is no longer true, or broken (which is said)."""
    try:
        with place.open("rb") as file, np.load(file, allow_pickle=False) as members:  # compares the checksums
            arrays = {name: members[name] for name in members.files}
        header = json.loads(arrays.pop("header").tobytes())
        prefixes, stamps = arrays.pop("folders").tobytes().split(b"\0"), arrays.pop("stamps")
        if any(header[name] != value for name, value in _key(folder, classes).items()):
            return None
        found = Index(
            SharedArrays({name: arrays[name] for name in ("text", "ends", "targets")}),
            Counter(header["left_out"]),
            f"from the index of {header['written']}, as no folder has changed since",
        )
        now = side_by_side(stamp_of, [str(folder / os.fsdecode(prefix)) for prefix in prefixes])
        if not np.array_equal(np.array(now, dtype=np.int64), stamps):
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # zipfile and numpy raise nearly anything on bytes that were altered
        say(f"The index {place} cannot be used ({str(error).strip()}): {folder} is walked anew.")
        return None
    with suppress(OSError):
        os.utime(place)  # the last used ones are kept
    return found


def _remember(place: Path, walk: Walk, settle_s: float) -> Index:
    stamps = [found.stamp for found in walk.found if found.stamp != NOWHERE]
    # a time to come is one that somebody has set
    changed_ns = [max(changed, written if written <= walk.begin_s * 1e9 else 0) for _, written, changed in stamps]
    if max(changed_ns, default=0) > (walk.begin_s - settle_s) * 1e9:
        return _walked(walk, "not remembered, because folders were changed just before")
    if len(stamps) > 2 and len({changed for _, _, changed in stamps}) == 1:
        return _walked(walk, "not remembered, because this disk keeps no times of folders")
    arrays, left_out = walk.arrays()
    word = f"remembered in {place}"
    try:
        _write(place, walk, arrays, left_out)
        _remove_oldest(place.parent)
    except OSError as error:
        word = f"not remembered: {place}: {error.strerror or error}"
    return Index(SharedArrays(arrays), left_out, f"walked in {walk.seconds:.1f} s, {word}")


def _write(place: Path, walk: Walk, arrays: Mapping[str, np.ndarray], left_out: Counter[str]) -> None:
    header = {**_key(walk.folder, walk.classes), "left_out": left_out, "written": time.strftime("%Y-%m-%d %H:%M:%S")}
    own = {
        "header": json.dumps(header).encode(),
        "folders": b"\0".join(os.fsencode(found.prefix) for found in walk.found),
    }
    stamps = np.array([found.stamp for found in walk.found], dtype=np.int64)
    place.parent.mkdir(parents=True, exist_ok=True)
    texts = {name: np.frombuffer(text, dtype=np.uint8) for name, text in own.items()}
    with drafted(place) as draft, draft.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays, **texts, stamps=stamps)


def _remove_oldest(cache: Path) -> None:
    """A job's own folder on a cluster's disk has a new name each time."""
    with suppress(OSError):
        for path in sorted(cache.glob("index-*.npz"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)


@contextmanager
def _alone(place: Path, folder: Path, wait_s: float, say: Say, before_waiting: Callable[[], None]) -> Iterator[bool]:
    """False: after another process that held the lock, or that still does after wait_s. Where there is no lock to be
    had, each is alone."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle = place.with_suffix(".lock").open("a")
    except OSError:
        yield True
        return
    with handle:
        begin, next_line, waited = time.monotonic(), SAY_EVERY_S, False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # freed by the system if its holder dies
                break
            except BlockingIOError:
                if not waited:
                    before_waiting()
                waited = True
            except OSError:  # a disk without locks
                break
            seconds = time.monotonic() - begin
            if seconds > wait_s:
                say(f"Another process has walked {folder} for more than {wait_s:g} s: this one walks it too.")
                break
            if seconds > next_line:
                next_line += 3 * SAY_EVERY_S
                say(f"Waiting for another process that walks {folder} (it holds {handle.name}), for {seconds:.0f} s.")
            time.sleep(0.05)
        if waited:  # all who waited go on at once
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
        yield not waited
