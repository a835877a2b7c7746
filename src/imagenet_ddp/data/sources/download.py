"""Prepare a large file once per machine: a lock between processes, and checks of an archive."""

import fcntl
import hashlib
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.progress_bar import Progress
from imagenet_ddp.system.text import MIB

STALL_S = 600.0  # longest wait for another process whose download does not grow; checking and unpacking take a minute
REPORT_S = 15.0  # time between two log lines of a waiting process


@dataclass(frozen=True)
class Archive:
    name: str  # name of the complete file
    url: str
    num_bytes: int  # 0: unknown
    md5: str

    def part(self, root: Path) -> Path:
        """Return the path of the file that grows during the download."""
        return root / f"{self.name}.part"


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def lock_or_wait(lock: Path, growing: Path | None, quiet_s: float = 0.0) -> Iterator[None]:
    """Lock a file, and wait while another process holds the lock. growing: file that must keep growing during the wait;
    None: wait without a limit. quiet_s: time in seconds before the first log line about the wait. Raises ConfigError if
    the file has not grown for STALL_S seconds."""
    with lock.open("a") as handle:
        seen, deadline, next_line = -1, 0.0, time.monotonic() + quiet_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system releases the lock if its holder dies
                break
            except BlockingIOError:
                now, size = time.monotonic(), size_of(growing) if growing is not None else 0
            if size != seen:
                seen, deadline = size, now + STALL_S
            if growing is not None and now > deadline:
                raise ConfigError(
                    f"Timed out: another process has held {lock} to prepare {lock.parent} for {STALL_S:g} s "
                    "without progress. Hint: stop that process, then run this command again."
                )
            if now >= next_line:
                far = f"; {seen // MIB} MiB so far" if growing is not None else ""
                print_message(f"Waiting for another process that prepares {lock.parent} (it holds {lock.name}{far})")
                next_line = now + REPORT_S
            time.sleep(0.1)
        yield


def validate_size(path: Path, archive: Archive) -> list[str]:
    """Return a message if the file's size shows that it is not the archive, else an empty list."""
    size = path.stat().st_size
    if size == archive.num_bytes:
        return []
    why = "the download or copy is incomplete" if size < archive.num_bytes else "it is another file"
    return [
        f"{path} must be {archive.num_bytes:,} bytes, got {size:,}: {why}. Hint: delete the file and download it again."
    ]


def verify(path: Path, archive: Archive) -> None:
    """Check the MD5 of a download. Raises ConfigError if it differs."""
    print_message(f"Checking the MD5 of {path}.")
    digest = hashlib.md5(usedforsecurity=False)
    bar = Progress(archive.name, -(-size_of(path) // MIB), "MiB")
    with path.open("rb", buffering=0) as file, closing(bar) as progress:
        while block := file.read(MIB):
            digest.update(block)
            progress.add(1)
    md5 = digest.hexdigest()
    if md5 != archive.md5:
        hint = f"delete {path}, then run this command again"
        raise ConfigError(f"{path} must have MD5 {archive.md5}, got {md5}. Hint: {hint}.")
