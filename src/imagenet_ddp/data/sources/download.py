"""Prepare a large file once per machine: a lock between processes, and the size of an archive."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from imagenet_ddp.system.console import print_message


@dataclass(frozen=True)
class Archive:
    """A published archive. num_bytes: its size."""

    name: str
    num_bytes: int
    url: str = ""
    md5: str = ""

    def wrong_size(self, folder: Path) -> list[str]:
        """Return a message if the size of the file shows that it is not the archive, else an empty list."""
        path = folder / self.name
        size = path.stat().st_size
        if size == self.num_bytes:
            return []
        why = "the download or copy is incomplete" if size < self.num_bytes else "it is another file"
        return [
            f"{path} must be {self.num_bytes:,} bytes, got {size:,}: {why}. Hint: delete the file and download it "
            "again."
        ]


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def lock_or_wait(lock: Path, *, silent: bool = False) -> Iterator[None]:
    """Lock a file, and wait while another process holds the lock, which the system releases if that process ends.
    silent: do not say that this process waits."""
    with lock.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not silent:
                print_message(f"Waiting for another process that prepares {lock.parent} (it holds {lock.name}).")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
