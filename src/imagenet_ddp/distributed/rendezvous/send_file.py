"""Send a file of number 0 to the other members, through their store."""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.distributed import Store

from imagenet_ddp.distributed.rendezvous.bounded_wait import Deadline
from imagenet_ddp.distributed.rendezvous.rank_group import RankGroup, explain_lost_store
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.checksum import sha256

CHUNK_BYTES = 4 * 2**20
POLL_S = 0.002


@explain_lost_store()
def send_file(rank_group: RankGroup, path: Path | None) -> Path | None:
    """Return the path of number 0's file on all members; None if number 0 has no file.

    The path is that of a local file with the same path and content, or else of a copy.
    """
    store, number, timeout_s = rank_group.store, rank_group.number, rank_group.timeout_s
    if rank_group.size == 1:
        return path
    description = None
    if number == 0 and path is not None:
        description = {"path": str(path), "bytes": path.stat().st_size, "sha256": sha256(path)}
    description = rank_group.broadcast("file", description)
    if description is None:
        return None
    path = Path(description["path"])
    is_local = number == 0 or _is_local(description)
    # !a, because a key of the store cannot contain the bytes of a file name that are not valid text
    who_has_it = rank_group.check_all(f"check for {str(path)!a}", is_local, lambda _: [])
    if number == 0 and not all(who_has_it):
        _send(store, path, who_has_it.count(False), timeout_s)
    return path if is_local else _receive(store, description, timeout_s)


def _is_local(description: Mapping[str, Any]) -> bool:
    path = Path(description["path"])
    return path.is_file() and path.stat().st_size == description["bytes"] and sha256(path) == description["sha256"]


def _send(store: Store, path: Path, num_readers: int, timeout_s: float) -> None:
    """Send the file in chunks, and delete each chunk when all readers have read it."""
    with path.open("rb") as file:
        chunk = 0
        while content := file.read(CHUNK_BYTES):
            store.set(f"file/{chunk}", content)  # type: ignore[arg-type]  # accepts bytes, but its annotation does not
            what = f"{path} has not been sent to all ranks"
            _wait(lambda n=chunk: int(store.add(f"file/{n}/read", 0)) >= num_readers, timeout_s, what)
            store.delete_key(f"file/{chunk}")
            chunk += 1


def _receive(store: Store, description: Mapping[str, Any], timeout_s: float) -> Path:
    name = Path(description["path"]).name
    folder = tempfile.mkdtemp(prefix="imagenet_ddp_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # by then, this process's workers have read the file
    target = Path(folder) / name
    num_bytes = chunk = 0
    with target.open("wb") as file:
        while num_bytes < description["bytes"]:
            what = f"{name} has not arrived from rank 0"
            _wait(lambda n=chunk: store.check([f"file/{n}"]), timeout_s, what)
            content = store.get(f"file/{chunk}")
            store.add(f"file/{chunk}/read", 1)
            num_bytes += file.write(content)
            chunk += 1
    if sha256(target) != description["sha256"]:
        raise ConfigError(
            f"{name} arrived from rank 0 with different content. "
            "Hint: make sure that no other program writes to the file on rank 0's machine."
        )
    return target


def _wait(done: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = Deadline(timeout_s)
    while not done():
        if not deadline.pause(lambda seconds: f"{what} yet, {seconds:.0f} s.", POLL_S):
            raise ConfigError(f"{what} within {timeout_s:g} s. Hint: put the file on a shared disk.")
