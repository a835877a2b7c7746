"""Let one process of this machine do some work while the others wait. Does not import torch."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from imagenet_ddp.system.console import print_message

REPEAT_S = 10.0  # between two messages about a wait
POLL_S = 0.1


@contextmanager
def lock_or_wait(lock: Path, *, silent: bool = False) -> Iterator[None]:
    """Lock a file, and wait while another process holds the lock, which the system releases if that process ends. Say
    so at once and every REPEAT_S seconds. silent: do not say it."""
    with lock.open("a") as handle:
        begin_s = next_s = time.monotonic()
        while not _try_lock(handle):
            if not silent and (now_s := time.monotonic()) >= next_s:
                waited = f", for {now_s - begin_s:.0f} s so far" if now_s - begin_s >= 1 else ""
                print_message(
                    f"Waiting for another process that prepares {lock.parent} (it holds {lock.name}){waited}."
                )
                next_s = now_s + REPEAT_S
            time.sleep(POLL_S)
        yield


def _try_lock(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
