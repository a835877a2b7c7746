"""Publish the store's address in a file on a shared disk: cluster.address=file:///PATH. Does not import torch.

The file contains only the address of a TCP store at a free port. Such a store answers faster than a file on a network
disk, needs no locks on that disk, and shows at once whether the machines reach each other. Rank 0, or the first node,
creates the file and removes it at the end. A file whose store no longer answers is stale. The file is reopened for each
check, because a network disk asks its server only when a file is opened.
"""

import contextlib
import json
import os
import stat
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from imagenet_ddp.distributed.facts import this_process
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.process import clean_up_at_exit


@dataclass(frozen=True)
class StoreAddress:
    """Content of the file. token: value that identifies the owner of the store."""

    token: str
    job_id: str | None
    host: str
    pid: int
    machine: str
    pids: str
    addresses: list[str]
    port: int

    @property
    def owner(self) -> str:
        return f"{self.host} (process {self.pid})"

    def reachable_addresses(self) -> list[str]:
        """Return the addresses to try from this machine, the most likely address first."""
        others = [address for address in self.addresses if not address.startswith("127.")]
        return ["127.0.0.1", *others] if self.machine == this_process()["machine"] else others or self.addresses


def validate(path: str) -> list[str]:
    """Return an error if no file can be created at this path, before any process waits for the file.

    Reading from a pipe, for example, would never end.
    """
    folder = Path(path).parent
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) and _can_be_regular(path):
        return []
    return [
        f"cluster.address=file://{path} must name a regular file or a new file, in a folder that exists and is "
        "writable on every node, but does not on this node. Hint: mount the shared disk, or set another path."
    ]


def _can_be_regular(path: str) -> bool:
    """Return whether there is a regular file or nothing at this path. Another node may replace the file meanwhile."""
    try:
        return stat.S_ISREG(Path(path).stat().st_mode)
    except FileNotFoundError:
        return not Path(path).is_symlink()


def read(path: str) -> StoreAddress | None:
    """Return the content of the file; None if there is no file, or if its content is different or incomplete."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        return StoreAddress(**{field.name: content[field.name] for field in fields(StoreAddress)})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def create(path: str, token: str, job_id: str | None, addresses: list[str], port: int) -> bool:
    """Create the file, which is removed when this process ends. Return False if the file exists already.

    Raises ConfigError if the file cannot be created.
    """
    content = StoreAddress(token=token, job_id=job_id, addresses=addresses, port=port, **this_process())
    try:
        with Path(path).open("x", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(content)))
    except FileExistsError:
        return False
    except OSError as error:
        raise ConfigError(f"{path} cannot be created: {error.strerror}. Hint: set another folder.") from error
    _own_files.append((path, token))
    return True


def remove_stale(path: str, token: str) -> None:
    """Remove the file if it has this token.

    If several processes call this at once, only the process that creates a lock file next to the file removes it.
    Otherwise, another process could remove the file of the next owner.
    """
    lock = Path(f"{path}.stale.{token}")
    with contextlib.suppress(FileExistsError):
        lock.touch(exist_ok=False)
        try:
            _remove(path, token)
        finally:
            lock.unlink(missing_ok=True)


def _remove(path: str, token: str) -> None:
    if (content := read(path)) is not None and content.token == token:
        with contextlib.suppress(OSError):
            Path(path).unlink()


_own_files: list[tuple[str, str]] = []


@clean_up_at_exit
def remove_own_files() -> None:
    """Remove the files that this process owns."""
    while _own_files:
        _remove(*_own_files.pop())
