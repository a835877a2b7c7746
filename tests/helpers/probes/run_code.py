"""Run Python code that can use the modules imported here: python run_code.py CODE ARGS, where ARGS is JSON, `args`
there."""

import json
import os  # noqa: F401
import sys
import time  # noqa: F401
from datetime import timedelta  # noqa: F401

from torch.distributed import PrefixStore, TCPStore  # noqa: F401

from imagenet_ddp.distributed import failure_watch, meet, store, store_file  # noqa: F401
from imagenet_ddp.distributed.launchers.world_info import Address, LaunchInfo  # noqa: F401
from imagenet_ddp.errors import ConfigError  # noqa: F401

if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    args = json.loads(sys.argv[2])
    exec(sys.argv[1])
