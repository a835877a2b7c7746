"""Publish the store's address in a file on a shared disk: cluster.address=file:///PATH. No torch here.

The file is a pointer, not the store: a TCP store at a free port answers faster than a file on a network disk, needs no
locks there, and shows at once whether the machines reach each other. Rank 0, or the first node, creates the file and
removes it at the end. A file whose store no longer answers is stale. It is opened again for each look: a network disk
then asks its server.
"""

import atexit
import contextlib
import json
import os
import stat
import uuid
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from imagenet_ddp.distributed.rendezvous.consistency import this_process
from imagenet_ddp.errors import ConfigError


@dataclass(frozen=True)
class StoreAddress:
    """What the file holds. token: the owner mark of the store."""

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
    """List what is wrong with the path, before anything waits."""
    name, folder = f"cluster.address=file://{path}", Path(path).parent
    try:
        mode = Path(path).stat().st_mode  # follows links
    except (FileNotFoundError, NotADirectoryError):
        if Path(path).is_symlink():
            return [f"{name} is a link to nothing. Hint: remove it, or another path."]
        mode = None
    except OSError as error:
        return [f"{name} cannot be used: {error.strerror}. Hint: another path."]
    if mode is not None and stat.S_ISDIR(mode):
        return [f"{name} must be a file, but is a folder. Hint: file://{path}/job1."]
    if mode is not None and not stat.S_ISREG(mode):
        return [f"{name} must be a plain file, or none yet. Hint: another path."]
    if not folder.is_dir():
        return [
            f"the folder of {name} must exist on every node, but {folder} does not exist here. "
            "Hint: mount the shared disk, or make the folder."
        ]
    if not os.access(folder, os.W_OK | os.X_OK):
        return [
            f"the folder of {name} must be writable, but {folder} is not, for this user. "
            "Hint: a folder of your own on the shared disk."
        ]
    return []


def read(path: str) -> StoreAddress | None:
    """Return None where there is no file, or one that holds something else, or is not yet complete."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        return StoreAddress(**{field.name: content[field.name] for field in fields(StoreAddress)})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def create(path: str, token: str, job_id: str | None, addresses: list[str], port: int) -> bool:
    """Create the file, removed when this process ends. Return False where there is one already."""
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
    """Remove the file of this token. Of several processes at once only the holder of a second file does, so that none
    removes the next owner's."""
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


def new_token() -> str:
    return uuid.uuid4().hex[:12]


_own_files: list[tuple[str, str]] = []


@atexit.register
def remove_own_files() -> None:
    """Remove the files that this process owns; to be called before os._exit, which runs no exit handlers."""
    while _own_files:
        _remove(*_own_files.pop())
