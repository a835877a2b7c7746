"""List all images below a folder of class folders."""

import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from imagenet_ddp.data.sources.folder.disk_threads import imap_unordered
from imagenet_ddp.data.sources.folder.scan import Content, LinkedFolders, LinkFilter, content
from imagenet_ddp.data.sources.folder.shared_arrays import SharedArrays
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import count_noun

SAY_EVERY_S = 10.0

Folder = tuple[int, str]  # position of its class, -1: the folder of class folders; "cat/deep/", "" at the top


@dataclass
class Listing:
    """arrays: text uint8, all paths below the folder one after the other; ends int64 (N,), where each ends in it;
    targets int64 (N,), the positions of the classes. Sorted within a class."""

    arrays: SharedArrays
    left_out: Counter[str]  # "beside", "hidden", "special", or an extension -> files


def describe_left_out(left_out: Counter[str]) -> str:
    """Describe what a Listing left out; "" where nothing was."""
    kinds = left_out.copy()
    parts = [
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
        parts.append(f"{others:,} not images by extension ({', '.join(names)})")
    total = left_out.total()
    return f"{count_noun(total, 'file')} left out: {', '.join(parts)}" if total else ""


def list_images(folder: Path, classes: list[str], say: Callable[[str], None]) -> Listing:
    """List the images below folder/<class> for each class, to any depth; classes without a folder have none.

    say: logs progress every SAY_EVERY_S. Raises PermissionError, and ConfigError for other errors of the disk.
    """
    try:
        return _listing(_walk(folder, classes, say), len(classes))
    except PermissionError:
        raise
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder} must be readable, but: {error.strerror or error}. Hint: is the disk "
            "still there? data.root=FOLDER names another one."
        ) from error


def _walk(folder: Path, classes: list[str], say: Callable[[str], None]) -> list[tuple[Folder, Content]]:
    link_filter = LinkFilter(folder, classes)

    def look(below: Folder) -> Content:
        _, prefix = below
        try:
            return content(str(folder / prefix), link_filter)
        except (FileNotFoundError, NotADirectoryError):
            if prefix.count("/") <= 1:
                return Content()
            raise

    todo = deque((position, f"{name}/") for position, name in enumerate(classes))
    if "." not in classes:  # else the images lie in the folder itself
        todo.appendleft((-1, ""))
    num_open = Counter(position for position, _ in todo)  # class -> folders still to be walked
    links: defaultdict[int, LinkedFolders] = defaultdict(LinkedFolders)
    found: list[tuple[Folder, Content]] = []
    last_s = time.monotonic()
    for answer in imap_unordered(look, todo, SAY_EVERY_S):
        if answer is not None:
            found.append(answer)
            (position, prefix), seen = answer
            more = [f"{prefix}{name}/" for name in seen.folders] if position >= 0 else []
            if position >= 0:
                for name, real in seen.links.items():
                    links[position].add(f"{prefix}{name}/", real)
            num_open[position] += len(more) - 1
            if not num_open[position] and position in links:  # links to other places last, class by class
                more += links[position].follow()
                num_open[position] += len(more)
            todo += [(position, below) for below in more]
        if (now := time.monotonic()) - last_s >= SAY_EVERY_S:
            last_s, number = now, sum(len(seen.images) for _, seen in found)
            say(f"Walking {folder}: {number:,} images so far, {num_open.total():,} folders to go at least.")
    return found


def _listing(found: list[tuple[Folder, Content]], num_classes: int) -> Listing:
    left_out: Counter[str] = Counter()
    by_class: list[list[str]] = [[] for _ in range(num_classes)]
    for (position, prefix), seen in found:
        left_out.update(seen.left_out)
        if position >= 0:
            by_class[position] += [prefix + name for name in seen.images]
        elif seen.images:
            left_out["beside"] += len(seen.images)
    encoded = [[os.fsencode(path) for path in sorted(paths)] for paths in by_class]
    lengths = np.array([len(path) for paths in encoded for path in paths], dtype=np.int64)
    counts = [len(paths) for paths in encoded]
    arrays = {
        "text": np.frombuffer(b"".join(path for paths in encoded for path in paths), dtype=np.uint8),
        "ends": np.cumsum(lengths),
        "targets": np.repeat(np.arange(num_classes, dtype=np.int64), counts),
    }
    return Listing(SharedArrays(arrays), left_out)
