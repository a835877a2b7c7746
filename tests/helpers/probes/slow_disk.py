"""Provide a source that simulates a slow disk; allow_targets=[slow_disk] permits it."""

import os
import time
from collections import Counter
from pathlib import Path

from imagenet_ddp.data.sources import image_files as folder_walk
from imagenet_ddp.data.sources.base import Source
from imagenet_ddp.data.sources.image_files import list_images
from imagenet_ddp.data.sources.walk import class_folders


def open_slowly(root: str, mark: str, seconds: float) -> Source:
    """Return the source of data=imagefolder, but wait `seconds` before each folder is listed. First create the file
    <mark>.<PID>, so that a test can see the start."""
    look = folder_walk.list_folder

    def list_folder(folder: Path, *, whole: bool = True) -> tuple[list[str], Counter[str]]:
        time.sleep(seconds)
        return look(folder, whole=whole)

    Path(f"{mark}.{os.getpid()}").touch()
    folder_walk.list_folder = list_folder
    classes = class_folders(Path(root) / "train")
    train, val = (list_images(Path(root) / split, classes) for split in ("train", "val"))
    return Source(classes, train, val)
