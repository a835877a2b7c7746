"""Provide a source one of whose images is not there before a file is, as on a disk or network that has failed."""

import time
from pathlib import Path

from torch import distributed

from imagenet_ddp.callbacks import stalled_step
from imagenet_ddp.data.decoding.decode import Picture
from imagenet_ddp.data.sources.base import Source
from imagenet_ddp.data.sources.image_files import list_images
from imagenet_ddp.data.sources.walk import class_folders


def open_stuck(root: str, until: str, report_s: float) -> Source:
    """Return the source of data=imagefolder. Rank 1 waits for the file `until` before it reads an image, and rank 0
    therefore for rank 1. report_s: in place of a minute."""
    stalled_step.REPORT_S, stalled_step.POLL_S = report_s, 0.02
    classes = class_folders(Path(root) / "val")
    val = list_images(Path(root) / "val", classes)
    look = val.open

    def look_late(index: int) -> Picture:
        while distributed.get_rank() == 1 and not Path(until).exists():
            time.sleep(0.02)
        return look(index)

    val.open = look_late
    return Source(classes, None, val)
