"""A source on a disk that answers late, let in by allow_targets=[slow_disk]."""

import os
import time
from pathlib import Path

from imagenet_ddp.data.sources.base import Source
from imagenet_ddp.data.sources.folder import walk as folder_walk
from imagenet_ddp.data.sources.folder.disk_threads import TRIED
from imagenet_ddp.data.sources.folder.images import walk
from imagenet_ddp.data.sources.folder.scan import class_folders


def open_slowly(root: str, mark: str, seconds: float) -> Source:
    """The images of imagefolder. The first folders come late, each further one after so many seconds, when the file
    mark.PID has been made."""
    looked, asked = folder_walk.content, 0

    def content(folder: str, within: folder_walk.LinkFilter) -> folder_walk.Content:
        nonlocal asked
        asked += 1
        time.sleep(0.002 if asked <= TRIED else seconds)
        return looked(folder, within)

    Path(f"{mark}.{os.getpid()}").touch()
    folder_walk.content = content
    classes = class_folders(Path(root) / "train")
    train, val = (walk(Path(root) / split, classes) for split in ("train", "val"))
    return Source(classes, train, val)
