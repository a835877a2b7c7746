"""Publish the store's address in a file on a shared disk: cluster.address=file:///PATH. No torch.

The file only points to the store: a TCP store at a free port answers faster than a file on a network disk, needs no
locks there, and shows at once whether the machines reach each other. Rank 0, or the first node, creates the file and
removes it at the end. A file whose store no longer answers is stale. The file is reopened for each look, because only
then does a network disk ask its server.
"""

import atexit
import contextlib
import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from imagenet_ddp.distributed.rendezvous.consistency import this_process
from imagenet_ddp.errors import ConfigError


@dataclass(frozen=True)
class StoreAddress:
    """The content of the file. token: the owner mark of the store."""

    token: str
    job_id: str | None
    host: str
    pid: int
    machine: str
    addresses: list[str]
    port: int

    @property
    def owner(self) -> str:
        return f"{self.host} (process {self.pid})"

    def reachable_addresses(self) -> list[str]:
        """Return the addresses to try from this machine, the likeliest first."""
        others = [address for address in self.addresses if not address.startswith("127.")]
        return ["127.0.0.1", *others] if self.machine == this_process()["machine"] else others or self.addresses


def validate(path: str) -> list[str]:
    """Refuse, before anything waits, a path at which no file can be made. Reading a pipe, for example, would never
    end."""
    folder = Path(path).parent
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) and (Path(path).is_file() or not os.path.lexists(path)):
        return []
    return [
        f"cluster.address=file://{path} must name a plain file, or none yet, in a folder that exists and can be "
        "written to on every node, which is not so here. Hint: mount the shared disk, or another path."
    ]


def read(path: str) -> StoreAddress | None:
    """Return the content; None if there is no file, if it holds something else, or if it is not complete yet."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        return StoreAddress(**{field.name: content[field.name] for field in fields(StoreAddress)})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def create(path: str, token: str, job_id: str | None, addresses: list[str], port: int) -> bool:
    """Create the file, to be removed when this process ends. Return False if there is one already."""
    content = StoreAddress(token=token, job_id=job_id, addresses=addresses, port=port, **this_process())
    try:
        with Path(path).open("x", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(content)))
    except FileExistsError:
        return False
    except OSError as error:
        raise ConfigError(f"{path} cannot be made: {error.strerror}. Hint: another folder.") from error
    _own_files.append((path, token))
    return True


def remove_stale(path: str, token: str) -> None:
    """Remove the file with this token. Of several processes at once, only the one that creates a lock file beside it
    does so; otherwise another could remove the next owner's file."""
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


@atexit.register
def remove_own_files() -> None:
    """Remove the files that this process owns. Call before os._exit, which runs no exit handlers."""
    while _own_files:
        _remove(*_own_files.pop())
