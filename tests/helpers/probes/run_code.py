"""Run Python code that can use the names of this module: python run_code.py CODE ARGS, where ARGS is JSON, `args`
there."""

import json
import os  # noqa: F401
import sys
import time  # noqa: F401
from datetime import timedelta  # noqa: F401
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # noqa: F401

from imagenet_ddp.distributed import failure_watch, find_store, store, store_file  # noqa: F401
from imagenet_ddp.distributed.compare_members import Member, this_process
from imagenet_ddp.distributed.meet import Expected, Meeting, meet
from imagenet_ddp.distributed.messages import Messages
from imagenet_ddp.distributed.place import Address, Place  # noqa: F401
from imagenet_ddp.errors import ConfigError  # noqa: F401


def label(number: int) -> str:
    return f"rank {number} (node {number // 4}, local rank {number % 4})"


def meet_as(
    root: Store | Messages, number: int | None, size: int, timeout_s: float, noun: str = "rank", **more: Any
) -> Meeting:
    """Meet the others as this rank or node of a meeting. more: fields of Member."""
    root = root if isinstance(root, Messages) else Messages(root)
    own = Member(**vars(this_process()), number=number, size=size, **more)
    return meet(root, own, Expected(size, noun, label, "start the command there too."), timeout_s)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    args = json.loads(sys.argv[2])
    exec(sys.argv[1])
