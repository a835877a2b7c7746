"""Run Python code that can use the names of this module: python run_code.py CODE ARGS, where ARGS is JSON, `args`
there."""

import json
import os  # noqa: F401
import sys
import time  # noqa: F401
from datetime import timedelta  # noqa: F401
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # noqa: F401

from imagenet_ddp.distributed import commands, failure_watch, store, store_file  # noqa: F401
from imagenet_ddp.distributed.meet import Meeting, meet
from imagenet_ddp.distributed.messages import Messages
from imagenet_ddp.distributed.place import Address, Place  # noqa: F401
from imagenet_ddp.errors import ConfigError  # noqa: F401


def meet_as(
    root: Store | Messages, number: int, size: int, timeout_s: float, equal: dict[str, Any] | None = None, **more: Any
) -> Meeting:
    """Meet the others as this rank, of nodes of four where the size allows. equal: what must be equal. more: fields of
    Place."""
    local = 4 if size % 4 == 0 else size
    place = Place(number, number % local, number // local, size, local, size // local, **more)
    return meet(root if isinstance(root, Messages) else Messages(root), place, equal or {}, timeout_s)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    args = json.loads(sys.argv[2])
    exec(sys.argv[1])
