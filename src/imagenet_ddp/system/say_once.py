"""Print once per machine what each of its ranks would print. Does not import torch."""

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO

from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.files import make_private

RANK = re.compile(r"(RANK|RANKID|PROCID)$")  # names of the variables by which launchers number processes
LOCK_S = 2.0  # longest wait for a rank that prints the same
FORGET_S = 60.0  # after which the same text is printed again


def say_once(text: str, say: Callable[[str], None] = print_message, *, about: str = "") -> None:
    """Print a text unless another rank that the same parent started on this machine has just printed it, or one about
    the same. A launcher ends all its ranks once one has ended, so return only after it is printed."""
    rank = "-".join(value for name, value in sorted(os.environ.items()) if RANK.search(name))
    rank = rank and _digest(rank)
    with contextlib.ExitStack() as stack:
        file = None
        with contextlib.suppress(OSError):
            file = stack.enter_context(_locked()) if rank else None
        if file is None:
            return say(text)
        subject = _digest(about or text)
        own, entries = f"{rank} {subject}", set(file.read().splitlines())
        if own in entries:  # of an earlier start, or of an earlier wait
            entries = {entry for entry in entries if not entry.endswith(subject)}
        if not any(entry.endswith(subject) for entry in entries):
            say(text)
        file.truncate(0)
        file.write("\n".join({*entries, own}))


@contextlib.contextmanager
def _locked() -> Generator[IO[str]]:
    """Open and lock the file of what the processes of this parent have said. Raises OSError."""
    folder, out = Path(tempfile.gettempdir(), f"imagenet_ddp-{os.getuid()}"), os.fstat(2)
    make_private(folder)
    # ranks that write to a file each have a message each
    place = f"{Path.cwd()} {(out.st_dev, out.st_ino) if stat.S_ISREG(out.st_mode) else ''}"
    name = f"said-{os.getppid()}-{_digest(place)}"
    with (folder / name).open("a+", encoding="utf-8") as file:
        _lock(file)
        if time.time() - os.fstat(file.fileno()).st_mtime > FORGET_S:
            file.truncate(0)
        file.seek(0)
        yield file


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:16]


def _lock(file: IO[str]) -> None:
    end_s = time.monotonic() + LOCK_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.01)
