"""A source on a disk that answers late, let in by allow_targets=[slow_disk]."""

import os
import time
from pathlib import Path

from imagenet_ddp.data import walking
from imagenet_ddp.data.files import walk
from imagenet_ddp.data.folders import TRIED, class_folders
from imagenet_ddp.data.index import NO_CACHE, Cache
from imagenet_ddp.data.sources import Source


def open_slowly(root: str, mark: str, seconds: float, cache: str | None = None) -> Source:
    """The images of imagefolder. The first folders come late, each further one after so many seconds, when the file
    mark.PID has been made. cache: where another process may hold the lock of the index."""
    looked, asked = walking.content, 0

    def content(folder: str, within: walking.Within) -> walking.Content:
        nonlocal asked
        asked += 1
        time.sleep(0.002 if asked <= TRIED else seconds)
        return looked(folder, within)

    Path(f"{mark}.{os.getpid()}").touch()
    walking.content = content
    classes = class_folders(Path(root) / "train")
    place = Cache(Path(cache), head_start_s=0.0) if cache else NO_CACHE
    train, val = (walk(Path(root) / split, classes, cache=place) for split in ("train", "val"))
    return Source(classes, train, val)
